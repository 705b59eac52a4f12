"""The commands of `kdc` and their options.

Each command imports what it needs when it runs: `kdc --help`, and what starts a training, wait for none of it.
"""

from __future__ import annotations

import inspect
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from keras_dist_callbacks import __version__
from keras_dist_callbacks.base.errors import ConfigError
from keras_dist_callbacks.base.terminal import escape_controls

if TYPE_CHECKING:
    from keras_dist_callbacks.cli.inventory import Entry
    from keras_dist_callbacks.cli.output import Target

_EXIT_CODES = (
    "Exit codes: 0 no problem; 1 damage or another problem was found, or a prune was refused; 2 wrong usage, or "
    "the directory cannot be opened or is empty."
)


class _RedactingGroup(TyperGroup):
    """Commands whose usage errors, which repeat what was typed, show no credentials."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            message = getattr(error, "message", None)
            if isinstance(message, str):  # an error of click's, of which some versions of typer have their own copy
                from keras_dist_callbacks.storage.redaction import Redactor

                vars(error)["message"] = escape_controls(Redactor.of(message, {}).clean(message))
            raise


app = typer.Typer(
    cls=_RedactingGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it would print local variables, and credentials with them
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXIT_CODES,
)

Url = Annotated[str, typer.Argument(help="A backup or checkpoint directory: a path, or a URL such as gs://bucket/x.")]
Options = Annotated[
    str | None,
    typer.Option(
        envvar="KDC_STORAGE_OPTIONS",
        metavar="JSON",
        show_default=False,
        help="Options for the fsspec file system. Credentials belong in the variable: others can see command lines.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to the standard output.")]
_COMMIT = "As `kdc ls` shows it, such as 2-14; or a manifest's name, or `latest`"
Commit = Annotated[str, typer.Option(help=f"{_COMMIT}.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"keras_dist_callbacks {__version__}")
        raise typer.Exit


@app.callback(epilog=_EXIT_CODES)
def kdc(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Looks at backups and checkpoints of keras_dist_callbacks, and checks the stores that hold them.

    All commands are safe while a run is writing.
    """


@app.command("ls", epilog=_EXIT_CODES)
def list_command(url: Url, storage_options: Options = None, as_json: Json = False) -> None:
    """Lists the backups and checkpoints in a directory, the newest first.

    Manifests, records and sizes are checked; `kdc verify` reads the content. "frees" is what deleting that backup alone
    would give back, "gen" counts the starts of the job.
    """
    from keras_dist_callbacks.cli import listing
    from keras_dist_callbacks.cli.output import nothing_in, opened

    with opened(url, storage_options, as_json) as target:
        found = listing.list_directory(target)
        if as_json or not found.is_empty:
            target.report(found, listing.show_listing, problem=found.has_problem)
        if found.is_empty:
            raise nothing_in(target)


@app.command(epilog=_EXIT_CODES)
def show(
    url: Annotated[str, typer.Argument(help="A backup or checkpoint directory, or a checkpoint: a path or URL.")],
    commit: Annotated[str, typer.Option(help=f"{_COMMIT}; or a checkpoint's name.")] = "latest",
    every_tensor: Annotated[bool, typer.Option("--all", help="Show all tensors.")] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Shows what one backup holds: progress, versions, callbacks, Python state and tensors.

    Of a checkpoint: its record, and whether its content is intact. Without a name the newest backup is shown or, if
    there are only checkpoints, the newest checkpoint.
    """
    from keras_dist_callbacks.checkpoints import files
    from keras_dist_callbacks.checkpoints.record import EXTENSIONS
    from keras_dist_callbacks.cli import details
    from keras_dist_callbacks.cli.inventory import read_entries
    from keras_dist_callbacks.cli.output import opened

    place, name = files.split_filepath(url) if url.endswith(EXTENSIONS) else (url, "")
    name = name or (commit if commit.endswith(EXTENSIONS) else "")
    with opened(place, storage_options, as_json) as target:
        entries = [] if name else read_entries(target.store)
        published = files.Listing() if entries else files.find(target.storage)
        checkpoint = None if entries else details.choose(target.storage, published, name)
        if checkpoint is None:
            held = details.describe_commit(target, entries, _chosen(target, entries, commit))
            shown = partial(details.show_commit, every_tensor=every_tensor)
            target.report(held, shown, problem=held.commit.state != "ok")
            return
        found = details.describe_checkpoint(target.storage, checkpoint, published, is_named=bool(name))
        target.report(found, details.show_checkpoint, problem=bool(found.state != "intact" or found.others))


@app.command(epilog=_EXIT_CODES)
def export(
    url: Url,
    out: Annotated[str, typer.Argument(help="The file to write: .safetensors, .keras or .weights.h5; a path or URL.")],
    commit: Commit = "latest",
    model: Annotated[
        str | None, typer.Option(help="A .keras or JSON file with the architecture, if the backup holds none.")
    ] = None,
    modules: Annotated[
        list[str] | None, typer.Option("--import", help="A module with layers of your own; may be repeated.")
    ] = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Writes one backup into a file that other tools read.

    Into .safetensors the variables by their paths: weights, optimizer, metrics. Into .keras and .weights.h5 the model
    with its optimizer; a process with Keras makes these, of the architecture that backups of fit() hold.
    """
    from keras_dist_callbacks.cli import exporting
    from keras_dist_callbacks.cli.inventory import Entry
    from keras_dist_callbacks.cli.output import opened

    with opened(url, storage_options, as_json) as target:
        _chosen(target, [Entry(found, None) for found in target.store.commits()], commit)  # or it says what is there
        name = None if commit == "latest" else commit
        written = exporting.export(target, url, name, out, model, modules or ())
        target.report(written, exporting.show_export)


@app.command(epilog=_EXIT_CODES)
def verify(
    url: Url,
    commit: Annotated[str | None, typer.Option(help="Only this backup, as for `kdc show`.")] = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Reads every backup and checkpoint completely and compares it with its hashes; changes nothing."""
    from keras_dist_callbacks.checkpoints import files
    from keras_dist_callbacks.cli import upkeep
    from keras_dist_callbacks.cli.inventory import read_entries
    from keras_dist_callbacks.cli.output import nothing_in, opened

    with opened(url, storage_options, as_json) as target:
        entries = read_entries(target.store)
        published = files.Listing() if commit else files.find(target.storage)
        if commit:
            entries = [_chosen(target, entries, commit)]
        if not (entries or published.checkpoints or published.problems):
            raise nothing_in(target)
        found = upkeep.verify(target, entries, published)
        is_intact = found.all_intact
        target.report(found, upkeep.show_verification, problem=not is_intact, all_intact=is_intact)


@app.command(epilog=_EXIT_CODES)
def prune(
    url: Url,
    keep: Annotated[int | None, typer.Option(min=1, metavar="N", help="Keep so many of the newest backups.")] = None,
    keep_every: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Keep the first backup at or after each K epochs.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Prune even if a run may still be writing; the backups of that run are kept."),
    ] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Deletes all backups that neither option keeps: manifests first, then what no manifest names.

    At least one verified backup is kept, whatever its age. Checkpoints are not changed.
    """
    from keras_dist_callbacks.backups.retention import Rules
    from keras_dist_callbacks.cli import formatting, upkeep
    from keras_dist_callbacks.cli.output import PROBLEM, fail, opened

    with opened(url, storage_options, as_json) as target:
        if as_json and not (yes or dry_run):
            raise ConfigError("--json asks no questions: add --yes or --dry-run")
        rules = Rules(keep, keep_every=keep_every)
        if rules.keep_all:
            raise ConfigError("--keep N or --keep-every K says which backups stay")
        plan = upkeep.make_plan(target, rules, spare_live_run=force or dry_run)
        if not as_json:
            target.report(plan, upkeep.show_plan)
        wanted = not (dry_run or plan.is_empty)
        if wanted and not yes and not _confirmed():
            raise fail("nothing was deleted; in scripts, use --yes", PROBLEM)
        if wanted:
            upkeep.execute(target.store, plan)
        if as_json:
            target.report(plan, upkeep.show_plan, deleted=wanted)
        elif wanted:
            formatting.Page().line(f"deleted, {formatting.size(plan.bytes)} freed", "green")


@app.command(epilog=_EXIT_CODES)
def rollback(
    url: Url,
    to: Annotated[str | None, typer.Option(metavar="1-7|start", help="A backup as `kdc ls` names it.")] = None,
    before_step: Annotated[int | None, typer.Option(min=1, help="The newest backup with fewer steps.")] = None,
    before_epoch: Annotated[int | None, typer.Option(min=1, help="The newest one with fewer complete epochs.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take the newest rollback back.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be changed.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also while a run may be writing, which ends then.")] = False,
    checkpoints: Annotated[
        str | None, typer.Option(metavar="URL", help="A directory of ModelCheckpoint: its later files move aside too.")
    ] = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Makes an older backup the newest one: the next start of the job continues from there.

    It is verified first. The later ones stay in rolled-back/ until a run has saved a new one.
    """
    from keras_dist_callbacks.cli import rollback as going_back
    from keras_dist_callbacks.cli.output import PROBLEM, fail, opened
    from keras_dist_callbacks.storage.storage import Storage

    ways = {"to": to, "before_step": before_step, "before_epoch": before_epoch, "undo": undo or None}
    with opened(url, storage_options, as_json) as target:
        if not (dry_run or force) and (why := going_back.live_run(target.store)):
            raise fail(f"{target.url}: {why}; --force rolls back all the same, and ends it with its next save", PROBLEM)
        files = None if checkpoints is None else Storage.open(checkpoints, target.options)
        found = going_back.roll_back(target.store, ways, files, dry_run=dry_run)
        target.report(found, going_back.show_rollback)


@app.command(
    epilog="Exit codes: 0 the training has finished, or with --once nothing is wrong; 1 it has stalled, or with --once "
    "something is wrong; 2 wrong usage, or the directory cannot be read or holds no run."
)
def watch(
    url: Url,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks.")] = 10.0,
    stale_after: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="Without a sign of life, a run counts as stalled.")
    ] = 1800.0,
    storage_options: Options = None,
    openmetrics: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write metrics for Prometheus into a file, with each look.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Look once, and print JSON.")] = False,
) -> None:
    """Shows where a job is, how long it still takes, and what goes wrong; from the backup directory alone.

    It reads, and never writes: start it anywhere, as often as you like. It ends with the run.
    """
    import time

    from keras_dist_callbacks.cli import metrics, watching
    from keras_dist_callbacks.cli.output import CANNOT, PROBLEM, fail, opened

    with opened(url, storage_options, as_json) as target:
        watcher = watching.Watch(target.store, stale_after)

        def look_now() -> watching.JobView:
            now = time.time()
            seen = watcher.look(now)
            if openmetrics is not None:
                metrics.write(seen, openmetrics, now)
            return seen

        if once or as_json:
            look = look_now()
            target.report(look, watching.show, problem=bool(look.troubles))
        else:
            look = watching.follow(lambda: target.cleaned(look_now()), every, stale_after)
        if look.state == "nothing":
            raise fail(f"{target.url}: no run has begun here; give the backup_dir of a run", CANNOT)
        if look.state == "stalled":
            raise typer.Exit(PROBLEM)


@app.command(epilog=_EXIT_CODES)
def report(
    url: Url,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Writes one HTML file that shows a whole training: when it ran, what was repeated, its curves, its processes.

    It loads nothing from elsewhere. The pictures are drawn by matplotlib (the extra `plot`).
    """
    from keras_dist_callbacks.backups import journal
    from keras_dist_callbacks.cli import reporting
    from keras_dist_callbacks.cli.output import opened

    with opened(url, storage_options, as_json) as target:
        found = reporting.gather(target.store)
        out.write_text(reporting.page_of(found), encoding="utf-8")
        target.report(reporting.Written(found.url, str(out), journal.summary(found.journal)), reporting.show)


@app.command(
    epilog="Exit codes: that of the script; 138 if the job should be started again; 2 if the script is not found.",
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True},
)
def run(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="A Python script, or with -m a module; its arguments follow.")],
    is_module: Annotated[bool, typer.Option("-m", help="Run a module, as `python -m` does.")] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            envvar="KDC_CLUSTER", metavar="slurm|indexed", help="Set TF_CONFIG from the scheduler's environment."
        ),
    ] = None,
) -> None:
    """Runs a training script; it ends with 138 after a preemption, or when a worker or the store was lost."""
    from keras_dist_callbacks.launch.restart import run_program

    try:
        if cluster:
            from keras_dist_callbacks.cluster.schedulers import read_scheduler

            os.environ["TF_CONFIG"] = read_scheduler(cluster, os.environ)
        run_program(program, context.args, is_module=is_module)  # any other error of the program ends it in there
    except ConfigError as error:
        raise _wrong_usage(error) from None


def _wrong_usage(error: Exception) -> typer.Exit:
    from keras_dist_callbacks.cli.output import CANNOT, fail

    return fail(str(error), CANNOT)


class _LaunchCommand(TyperCommand):
    """A command whose program follows `--`, or is a script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Doubles the first `--`: click takes away one that stands before the program."""
        at = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [*args[:at], *args[at : at + 1], *args[at:]])


@app.command(
    cls=_LaunchCommand,
    options_metavar="[OPTIONS]",
    epilog="Exit codes: 0; 138 after SIGTERM or SIGHUP, to be started again; 130 after Ctrl-C; 1 if restarting does "
    "not help; otherwise that of the worker that failed first, 128 + n for a signal; 2 for wrong usage.",
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": False},
)
def launch(
    context: typer.Context,
    program: Annotated[
        str, typer.Argument(show_default=False, help="A Python script, run as `kdc run` does; or `-- COMMAND ARGS`.")
    ] = "",
    workers: Annotated[int, typer.Option(help="Above 1, each worker gets a TF_CONFIG.")] = 1,
    max_restarts: Annotated[int, typer.Option(help="Restarts in a row without a new backup; 0 for none.")] = 3,
    restart_on_error: Annotated[
        bool, typer.Option("--restart-on-error", help="Restart after any code, not only 138 and signals (128 + n).")
    ] = False,
    grace: Annotated[
        float, typer.Option(help="Seconds from a signal, or the first worker's failure, until SIGKILL for the rest.")
    ] = 40.0,
    log_dir: Annotated[str | None, typer.Option(help="Keep each worker's output here.")] = None,
    gpus_per_worker: Annotated[int | None, typer.Option(help="Sets CUDA_VISIBLE_DEVICES.")] = None,
    hang_timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS|auto", help="Restart when training makes no progress for this long.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Have a spare process per worker that has imported TensorFlow already.")
    ] = False,
    is_module: Annotated[bool, typer.Option("-m", help="Run a module, as `kdc run -m` does.")] = False,
) -> None:
    """Runs a training on this machine, with one or several workers, and restarts it where that helps.

    All workers are restarted together. Restarts that have made a new backup are unlimited.
    """
    from keras_dist_callbacks.launch import launcher, worker
    from keras_dist_callbacks.launch.launch_options import LaunchOptions

    try:
        words = _program([program, *context.args], "launch", is_module=is_module)
        command = tuple(words[1:]) if words[0] == "--" else (*worker.COMMAND, *words)
        options = LaunchOptions(
            command=command,
            workers=workers,
            max_restarts=max_restarts,
            restart_on_error=restart_on_error,
            grace=grace,
            log_dir=log_dir,
            gpus_per_worker=gpus_per_worker,
            hang_timeout=_seconds(hang_timeout),
            standby=standby,
        )
        code = launcher.launch(options)
    except (ConfigError, OSError) as error:
        raise _wrong_usage(error) from None
    raise typer.Exit(code)


def _program(words: list[str], command: str, *, is_module: bool) -> list[str]:
    """What to run: `--` and a command, or a program that exists, with `-m` before a module."""
    if words[0] in ("", "--"):
        if is_module or len(words) == 1:
            raise ConfigError(f"name a script, or a command after `--`: see `kdc {command} --help`")
        return ["--", *words[1:]]
    if "--" in words:
        words.remove("--")  # the one that was doubled
    from keras_dist_callbacks.launch.restart import require_program

    if is_module:  # where `python -m` looks first; the console script has its own directory there
        sys.path.insert(0, str(Path.cwd()))
    require_program(words[0], is_module=is_module)
    return [*(["-m"] if is_module else []), *words]


def _seconds(text: str | None) -> Any:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text  # "auto", or what LaunchOptions refuses


@app.command(
    cls=_LaunchCommand,
    options_metavar="[OPTIONS]",
    epilog="Exit codes: 0 the killed run equals the uninterrupted ones; 1 it differs, or a resume failed; 2 nothing was"
    " shown: wrong usage, a script that fails, a time-out, no BackupAndRestore; 3 two uninterrupted runs differ.",
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": False},
)
def rehearse(
    context: typer.Context,
    program: Annotated[
        str, typer.Argument(show_default=False, help="A Python script with its arguments; or `-- COMMAND ARGS`.")
    ] = "",
    steps: Annotated[int, typer.Option(min=4, help="Batches per epoch and per validation, at most.")] = 20,
    epochs: Annotated[int, typer.Option(min=2, help="Epochs per fit(), at most.")] = 2,
    kills: Annotated[int, typer.Option(min=1, max=4, help="How often the run is killed.")] = 2,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes of a cluster on this machine, on CPUs.")] = 1,
    scratch: Annotated[
        str | None, typer.Option(help="Where backups, checkpoints and logs go: a path or URL. [default: temporary]")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Work in this directory, and not in copies of it.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, max=1e7, help="Seconds for each process.")] = 600.0,
    is_module: Annotated[bool, typer.Option("-m", help="Run a module, as `kdc run -m` does.")] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Proves on your own script that it resumes exactly: runs it shortened, kills it, restarts it, and compares.

    The script is not changed, and works in copies of this directory. What it would save with this package goes to a
    scratch directory; outside of the two it may change nothing.
    """
    from keras_dist_callbacks.cli.rehearsal import command as rehearsing

    try:
        words = _program([program, *context.args], "rehearse", is_module=is_module)
    except ConfigError as error:
        raise _wrong_usage(error) from None
    options = rehearsing.RehearsalOptions(
        words=words,
        steps=steps,
        epochs=epochs,
        kills=kills,
        workers=workers,
        timeout=timeout,
        scratch=scratch,
        storage_options=storage_options,
        in_place=in_place,
        as_json=as_json,
    )
    rehearsing.run(options)


@app.command(epilog=_EXIT_CODES)
def doctor(url: Url, storage_options: Options = None, as_json: Json = False) -> None:
    """Tests whether a store can hold backups, and looks for what interrupted runs have left.

    Writes a few small objects, and deletes them again.
    """
    from keras_dist_callbacks.cli import doctor as diagnosing
    from keras_dist_callbacks.cli.output import opened

    with opened(url, storage_options, as_json) as target:
        found = diagnosing.diagnose(target)
        is_usable = found.is_usable
        target.report(found, diagnosing.show_diagnosis, problem=not is_usable, usable=is_usable)


def _chosen(target: Target, entries: list[Entry], name: str) -> Entry:
    from keras_dist_callbacks.backups import select_backup
    from keras_dist_callbacks.cli.output import nothing_in

    if not entries:
        raise nothing_in(target, "backup")
    found = [entry for entry in entries if name == "latest" or entry.id.matches_name(name)]
    if not found:
        raise ConfigError(select_backup.not_found(target.store, name))
    return found[-1]


def _confirmed() -> bool:
    try:
        return typer.confirm("Delete these?", err=True)
    except typer.Abort:  # no terminal to ask at
        print(file=sys.stderr)
        return False


def _unwrapped(text: str) -> str:
    """A text with each paragraph in one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


for _registered in app.registered_commands:  # help is to wrap at the terminal's width, not where the source does
    _registered.help = _unwrapped(inspect.getdoc(_registered.callback) or "")
