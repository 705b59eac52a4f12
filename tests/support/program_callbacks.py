"""Programs that follow, log, prune or drive a training, as their documentation shows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

from tests.support.program_case import (
    BATCH,
    REFUSED,
    SETTINGS,
    More,
    Program,
    Trained,
    beside,
    digits,
    network,
    of_function,
)


def tqdm_bar(place: Path, more: More, **options: Any) -> Trained:
    from tqdm.keras import TqdmCallback

    return beside(TqdmCallback(**options), more=more)


def live_plot(place: Path, more: More) -> Trained:
    import matplotlib as mpl

    mpl.use("agg")
    from livelossplot import PlotLossesKeras
    from livelossplot.outputs import MatplotlibPlot

    figure = MatplotlibPlot(figpath=str(place / "plot-{i}.png"))
    return beside(PlotLossesKeras(outputs=[figure]), more=more)


def pruned_by_optuna(place: Path, more: More) -> Trained:
    import optuna
    from optuna_integration import KerasPruningCallback

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial = optuna.create_study(direction="maximize").ask()
    return beside(KerasPruningCallback(trial, "val_accuracy"), more=more)


def tensorboard_x(place: Path, more: More) -> Trained:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(place / "events"))

    def write(epoch: int, logs: Any) -> None:
        for name, value in logs.items():
            writer.add_scalar(name, value, epoch)

    return beside(keras.callbacks.LambdaCallback(on_epoch_end=write), more=more)


def dvclive(place: Path, more: More) -> Trained:
    from dvclive import Live
    from dvclive.keras import DVCLiveCallback

    os.chdir(place)  # DVC makes a repository there
    live = Live(str(place / "dvclive"), resume=True, dvcyaml=None, save_dvc_exp=False)
    return beside(DVCLiveCallback(live=live, save_dvc_exp=False), more=more)


def wandb_metrics(place: Path, more: More, frequency: Any = "epoch", checkpoint: bool = False) -> Trained:
    import wandb
    from wandb.integration.keras import WandbMetricsLogger, WandbModelCheckpoint

    wandb.init(project="digits", mode="offline", dir=str(place), settings=wandb.Settings(silent=True))
    found = [WandbMetricsLogger(log_freq=frequency)]
    if checkpoint:
        found.append(WandbModelCheckpoint(str(place / "model-{epoch}.keras")))
    trained = beside(*found, more=more)
    wandb.finish()
    return trained


def _mlflow(place: Path) -> Any:
    import mlflow

    os.chdir(place)  # models go below it
    mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow.db")
    mlflow.set_experiment("digits")
    return mlflow


def mlflow_plain(place: Path, more: More) -> Trained:
    mlflow = _mlflow(place)
    with mlflow.start_run():
        return beside(mlflow.tensorflow.MlflowCallback(), more=more)


def mlflow_autolog(place: Path, more: More) -> Trained:
    mlflow = _mlflow(place)
    mlflow.tensorflow.autolog()
    return beside(more=more)


def codecarbon(place: Path, more: More) -> Trained:
    from codecarbon import OfflineEmissionsTracker

    options = {"country_iso_code": "FRA", "output_dir": str(place), "log_level": "error", "force_mode_cpu_load": True}
    with OfflineEmissionsTracker(**options):
        return beside(more=more)


def comet(place: Path, more: More) -> Trained:
    import comet_ml

    experiment = comet_ml.OfflineExperiment(project_name="digits", offline_directory=str(place))
    trained = beside(experiment.get_callback("keras"), more=more)
    experiment.end()
    return trained


def scikeras(place: Path, more: More) -> Trained:
    from scikeras.wrappers import KerasClassifier

    estimator = KerasClassifier(network, batch_size=BATCH, callbacks=[*more], **SETTINGS).fit(*digits())
    return estimator.model_, estimator.history_


def scikeras_search(place: Path, more: More) -> Trained:
    """All folds have one directory, where each should have its own."""
    from scikeras.wrappers import KerasClassifier

    estimator = KerasClassifier(network, rate=0.01, batch_size=BATCH, callbacks=[*more], **SETTINGS)
    return searched(estimator, {"rate": [0.01, 0.003]})


def one_hot(X: Any, y: Any, rate: float = 0.01) -> keras.Model:  # noqa: N803 - as Keras calls it
    model = network()
    model.compile(keras.optimizers.Adam(rate), "categorical_crossentropy", metrics=["accuracy"])
    return model


def keras_wrapper(place: Path, more: More) -> Trained:
    from keras.wrappers import SKLearnClassifier

    options = {"batch_size": BATCH, "callbacks": [*more], **SETTINGS}
    found = SKLearnClassifier(one_hot, fit_kwargs=options).fit(*digits())
    return found.model_, found.history_


def keras_wrapper_search(place: Path, more: More) -> Trained:
    """The same; what is in `fit_kwargs` is lost where scikit-learn clones."""
    from keras.wrappers import SKLearnClassifier

    grid = {"model_kwargs": [{"rate": 0.01}, {"rate": 0.003}]}
    return searched(SKLearnClassifier(one_hot), grid, batch_size=BATCH, callbacks=[*more], **SETTINGS)


def searched(estimator: Any, grid: dict[str, Any], **options: Any) -> Trained:
    from sklearn.model_selection import GridSearchCV

    found = GridSearchCV(estimator, grid, cv=2, error_score="raise").fit(*digits(), **options)
    scores = {f"fold {number}": list(map(float, found.cv_results_[f"split{number}_test_score"])) for number in (0, 1)}
    return found.best_estimator_.model_, scores


def neptune(place: Path, more: More) -> Trained:
    import neptune as client
    from neptune_tensorflow_keras import NeptuneCallback

    os.chdir(place)
    with client.init_run(mode="offline") as run:
        return beside(NeptuneCallback(run=run, log_on_batch=True), more=more)


# Killed in the second fold; the first one begins again, with the second one's backup in the only directory.
ANOTHER_FOLD: Any = {"says": r"belongs to another fit\(\): .* No step is run", "identical": False, "killed_behind": 23}
FOLLOWED: dict[str, Program] = {
    "none": Program("keras", "keras", "exact", lambda place, more: beside(more=more)),
    "TqdmCallback": Program("tqdm", "tqdm", "exact", tqdm_bar),
    "TqdmCallback, a bar for each epoch": Program("tqdm", "tqdm", "exact", of_function(tqdm_bar, verbose=2)),
    "PlotLossesKeras": Program("livelossplot", "livelossplot", "exact", live_plot),
    "KerasPruningCallback": Program(  # its trial is in a study in memory, which ends with the process
        "optuna-integration", "optuna_integration", "not exact", pruned_by_optuna, says="KerasPruningCallback"
    ),
    "tensorboardX": Program("tensorboardX", "tensorboardX", "exact", tensorboard_x),
    "DVCLiveCallback": Program("dvclive", "dvclive", "exact if", dvclive),
    "WandbMetricsLogger": Program("wandb", "wandb", "exact", wandb_metrics),
    "WandbMetricsLogger, by batches": Program("wandb", "wandb", "exact", of_function(wandb_metrics, frequency=2)),
    "WandbModelCheckpoint": Program("wandb", "wandb", "exact", of_function(wandb_metrics, checkpoint=True)),
    "MlflowCallback": Program("mlflow", "mlflow", "exact", mlflow_plain),
    "mlflow.autolog": Program("mlflow", "mlflow", "exact", mlflow_autolog),
    "codecarbon": Program("codecarbon", "codecarbon", "exact", codecarbon),
    "comet_ml": Program("comet-ml", "comet_ml", "exact if", comet),
    "scikeras": Program("scikeras", "scikeras", "exact", scikeras),
    "neptune": Program("neptune-tensorflow-keras", "neptune_tensorflow_keras", "exact if", neptune),
    "scikeras in GridSearchCV": Program("scikeras", "scikeras", REFUSED, scikeras_search, **ANOTHER_FOLD),
    "SKLearnClassifier in GridSearchCV": Program("keras", "keras", REFUSED, keras_wrapper_search, **ANOTHER_FOLD),
    "SKLearnClassifier": Program("keras", "keras", "exact", keras_wrapper),
}
