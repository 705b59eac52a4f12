"""The commands of `kdc` and their options."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from keras_dist_callbacks import __version__
from keras_dist_callbacks.backups.names import DAMAGED, quarantined_name
from keras_dist_callbacks.checkpoints import files, foreign
from keras_dist_callbacks.checkpoints.files import split_filepath
from keras_dist_callbacks.checkpoints.record import EXTENSIONS
from keras_dist_callbacks.cli import doctor as diagnosing
from keras_dist_callbacks.cli import exporting, formatting, pruning, render, verifying
from keras_dist_callbacks.cli.details import choose, describe_checkpoint, describe_commit
from keras_dist_callbacks.cli.inventory import (
    QUIET_SECONDS,
    Entry,
    Inventory,
    blob_sizes,
    liveness,
    read_entries,
    take_inventory,
)
from keras_dist_callbacks.cli.listing import list_directory
from keras_dist_callbacks.cli.output import (
    CANNOT,
    PROBLEM,
    RedactingGroup,
    Target,
    console,
    escape_result,
    fail,
    nothing_in,
    opened,
    parse_options,
    print_json,
    progress,
)
from keras_dist_callbacks.errors import ConfigError
from keras_dist_callbacks.launch.restart import ProgramNotFoundError, run_program

_EXIT_CODES = (
    "Exit codes: 0 all is well; 1 damage or another problem was found, or a prune was refused; 2 wrong usage, or the "
    "directory cannot be opened or holds nothing."
)
app = typer.Typer(
    cls=RedactingGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it would print local variables, and credentials with them
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXIT_CODES,
)

Url = Annotated[str, typer.Argument(help="A backup or checkpoint directory: a path, or an URL such as gs://bucket/x.")]
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

    No command takes a directory from the run that owns it, so all of them can be used beside a run.
    """


@app.command("ls", epilog=_EXIT_CODES)
def list_command(url: Url, storage_options: Options = None, as_json: Json = False) -> None:
    """Lists the backups and checkpoints in a directory, the newest first.

    Manifests, records and sizes are checked; `kdc verify` reads the content.
    """
    with opened(url, storage_options) as target:
        entries = read_entries(target.store)
        published = files.find(target.storage)
        found = list_directory(
            target.url,
            entries,
            blob_sizes(target.storage, entries),
            published,
            foreign.names(target.storage),
            earlier_runs=target.store.has_owner_records(),
            now=time.time(),
        )
        listing = target.shown(found)
        if as_json:
            print_json(listing)
        if listing.is_empty:
            raise nothing_in(target)
        if not as_json:
            render.show_listing(console(), escape_result(listing))
        if listing.has_problem:
            raise typer.Exit(PROBLEM)


@app.command(epilog=_EXIT_CODES)
def show(
    url: Annotated[str, typer.Argument(help="A backup or checkpoint directory, or a checkpoint: a path or URL.")],
    commit: Annotated[str, typer.Option(help=f"{_COMMIT}; or a checkpoint's name.")] = "latest",
    every_tensor: Annotated[bool, typer.Option("--all", help="Show every tensor, however many.")] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Shows what one backup holds: progress, versions, random states, callbacks, files and tensors.

    Of a checkpoint: its record and, once its content was compared with the digest, its tensors. Without a name
    the newest backup is shown, or where there is none the newest checkpoint.
    """
    place, name = split_filepath(url) if url.endswith(EXTENSIONS) else (url, "")
    name = name or (commit if commit.endswith(EXTENSIONS) else "")
    with opened(place, storage_options) as target:
        entries = [] if name else read_entries(target.store)
        if not entries and _show_checkpoint(target, name, every_tensor=every_tensor, as_json=as_json):
            return
        entry = _chosen(target, entries, commit)
        manifest = entry.readable()
        before = [e.manifest for e in entries if e.id < entry.id and e.manifest is not None]
        stored = blob_sizes(target.storage, [entry])
        previous = before[-1] if before else None
        details = target.shown(describe_commit(target.url, entry, manifest, previous, stored, time.time()))
        if as_json:
            print_json(details)
        else:
            render.show_details(console(), escape_result(details), every_tensor=every_tensor)
        if details.commit.problem:
            raise typer.Exit(PROBLEM)


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
    with opened(url, storage_options) as target:
        entry = _chosen(target, read_entries(target.store), commit)
        wish = exporting.ExportRequest(out, parse_options(storage_options), model, modules or ())
        written = target.shown(exporting.export(target, url, entry.readable(), wish))
        if as_json:
            print_json(written)
        else:
            what = f"{written.tensors} variables of {written.commit} ({written.position})"
            console().print(escape_result(f"{what}: {written.path}, {formatting.size(written.bytes)}"), style="green")


@app.command(epilog=_EXIT_CODES)
def verify(
    url: Url,
    commit: Annotated[str | None, typer.Option(help="Only this backup, as for `kdc show`.")] = None,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Reads every backup and checkpoint completely and compares it with its hashes; changes nothing."""
    with opened(url, storage_options) as target:
        entries = read_entries(target.store)
        listing = files.Listing() if commit else files.find(target.storage)
        if commit:
            entries = [_chosen(target, entries, commit)]
        if not (entries or listing.checkpoints or listing.problems):
            raise nothing_in(target)
        found = target.shown(_verify(target, entries, listing))
        if as_json:
            print_json(found, all_whole=found.all_intact)
        else:
            render.show_verification(console(), escape_result(found))
        if not found.all_intact:
            raise typer.Exit(PROBLEM)


@app.command(epilog=_EXIT_CODES)
def prune(
    url: Url,
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest backups stay.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Although a run seems to be writing: all that this run wrote is left alone then."),
    ] = False,
    storage_options: Options = None,
    as_json: Json = False,
) -> None:
    """Deletes all but the newest backups: manifests first, then what no manifest names.

    At least one backup that was verified stays, whatever its age. Checkpoints are not touched.
    """
    with opened(url, storage_options) as target:
        if as_json and not (yes or dry_run):
            raise ConfigError("--json asks no questions: add --yes or --dry-run")
        plan = _plan(target, keep, spare_live_run=force or dry_run)
        if not as_json:
            render.show_plan(console(), escape_result(target.shown(plan)))
        wanted = not (dry_run or plan.is_empty)
        if wanted and not yes and not _confirmed():
            raise fail("nothing is deleted; --yes answers the question in scripts", PROBLEM)
        if wanted:
            pruning.execute(target.store, plan)
        if as_json:
            print_json(target.shown(plan), deleted=wanted)
        elif wanted:
            console().print(f"deleted, {formatting.size(plan.bytes)} freed", style="green")


@app.command(
    epilog="Exit codes: those of the script, and 138 where starting it again helps; 2 if there is no such script.",
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True},
)
def run(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="A Python script, or with -m a module; its arguments follow.")],
    is_module: Annotated[bool, typer.Option("-m", help="Run a module, as `python -m` does.")] = False,
) -> None:
    """Runs a training script; it ends with 138 after a preemption, or when a worker or the store was lost."""
    try:
        run_program(program, context.args, is_module=is_module)
    except ProgramNotFoundError as error:
        raise fail(str(error), CANNOT) from None


@app.command(epilog=_EXIT_CODES)
def doctor(url: Url, storage_options: Options = None, as_json: Json = False) -> None:
    """Tries out whether a store can hold backups, and looks for what interrupted runs have left.

    Writes a few small objects, and deletes them again.
    """
    with opened(url, storage_options) as target:
        with diagnosing.bench(target.storage) as tools:
            checks = diagnosing.run_checks(tools)
        if checks[0].status != "fail":
            checks += _look_for_leftovers(target)
        diagnosis = target.shown(diagnosing.Diagnosis(target.url, tuple(checks)))
        if as_json:
            print_json(diagnosis, usable=diagnosis.is_usable)
        else:
            render.show_diagnosis(console(), escape_result(diagnosis))
        if not diagnosis.is_usable:
            raise typer.Exit(PROBLEM)


def _show_checkpoint(target: Target, name: str, *, every_tensor: bool, as_json: bool) -> bool:
    """Whether there was one to show."""
    storage = target.storage
    listing = files.find(storage)
    checkpoint = choose(storage, listing, name or None)
    if checkpoint is None:
        return False
    remarks = () if name else listing.problems
    details = target.shown(describe_checkpoint(storage, checkpoint, time.time(), remarks))
    if as_json:
        print_json(details)
    else:
        render.show_checkpoint(console(), escape_result(details), every_tensor=every_tensor)
    if details.problem or details.remarks:
        raise typer.Exit(PROBLEM)
    return True


def _chosen(target: Target, entries: list[Entry], name: str) -> Entry:
    if not entries:
        raise nothing_in(target, "backup")
    if name == "latest":
        return entries[-1]
    found = [entry for entry in entries if entry.id.matches_name(name)]
    if len(found) != 1:
        known = ", ".join(entry.label for entry in reversed(entries[-5:]))
        raise ConfigError(f"{target.url}: {len(found) or 'no'} backups are named {name!r}; the newest: {known}")
    return found[0]


def _verify(target: Target, entries: list[Entry], listing: files.Listing) -> verifying.Verification:
    published = listing.checkpoints
    with progress("verifying", verifying.work(entries, published)) as advance:
        verifier = verifying.BackupVerifier(target.store, advance)
        verdicts = [verifier.verdict(entry) for entry in reversed(entries)]
        verdicts += [verifying.verify_checkpoint(target.storage, checkpoint, advance) for checkpoint in published]
    verdicts += verifying.problem_verdicts(target.storage, listing)
    set_aside = sum(quarantined_name(file.name) is not None for file in target.storage.files(DAMAGED))
    return verifying.Verification(target.url, tuple(v for v in verdicts if v is not None), set_aside)


def _plan(target: Target, keep: int, *, spare_live_run: bool) -> pruning.PrunePlan:
    inventory = take_inventory(target.store)
    if not inventory.entries:
        raise nothing_in(target, "backup")
    life = liveness(inventory, time.time())
    if life.running and not spare_live_run:
        raise fail(
            f"{target.url}: a run seems to be writing (generation {life.generation}: {life.why}), and it deletes its "
            f"old backups itself. Prune when it has ended or been quiet for "
            f"{formatting.age(QUIET_SECONDS)}; --force leaves this run's backups alone and prunes the others",
            PROBLEM,
        )
    with progress("verifying", _size_of_newest(inventory)) as advance:
        is_whole = pruning.verified_by(verifying.BackupVerifier(target.store, advance))
        kept = pruning.select_kept(inventory.entries, keep, is_whole)
    return pruning.plan_prune(target.url, inventory, kept, life.generation if life.running else 0)


def _size_of_newest(inventory: Inventory) -> int:
    return verifying.work(inventory.entries[-1:], ())


def _confirmed() -> bool:
    try:
        return typer.confirm("Delete these?", err=True)
    except typer.Abort:  # no terminal to ask at
        print(file=sys.stderr)
        return False


def _look_for_leftovers(target: Target) -> list[diagnosing.Check]:
    inventory = take_inventory(target.store)
    life = liveness(inventory, time.time())
    optional = (diagnosing.check_space(target.storage, inventory), diagnosing.check_uploads(target.storage))
    found = [check for check in optional if check is not None]
    return [*diagnosing.check_leftovers(inventory, life), diagnosing.check_checkpoints(target.storage), *found]
