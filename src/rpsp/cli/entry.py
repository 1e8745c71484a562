"""The entry point: call the command, handle signals, set the exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from types import FrameType
from typing import Any, NoReturn

from rpsp import sentinel
from rpsp.cli import belief, comparing, other, sharing, sweeps, training, tuning
from rpsp.cli.parsing import parse
from rpsp.cli.printing import flush, replace_unprintable
from rpsp.errors import PENDING, RpspError, Terminated, refuse_windows
from rpsp.experiments import config as configs
from rpsp.experiments import config_sharing, config_tuning

HANDLERS: dict[type, Callable[[Any], None]] = {
    configs.TrainConfig: training.train,
    configs.ResumeConfig: training.resume,
    configs.SweepConfig: sweeps.sweep,
    configs.PaperConfig: sweeps.paper,
    config_tuning.TuneConfig: tuning.tune,
    configs.EvalConfig: comparing.evaluate,
    configs.CompareConfig: comparing.compare,
    configs.ReportConfig: comparing.report,
    configs.DiagnoseConfig: comparing.diagnose,
    configs.FitConfig: belief.fit,
    configs.InspectConfig: belief.inspect,
    configs.ForecastConfig: belief.forecast,
    configs.WatchConfig: other.watch,
    configs.ExportConfig: other.export,
    config_sharing.PackConfig: sharing.pack,
    config_sharing.PushConfig: sharing.push,
    config_sharing.PullConfig: sharing.pull,
    config_sharing.ServeConfig: sharing.serve,
    configs.MethodsConfig: other.methods,
    configs.DoctorConfig: other.doctor,
}
"""The function that runs each command, by the class of its settings."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: the words after `rpsp`. Default: those of this process, which then belongs to the command: it may end
            without returning, and stdout is flushed at the end.

    Raises:
        SystemExit: with exit code 2 (usage), 3 (bad file), 4 (diverged), 5 (disk), 6 (environment), 130 or 143
            (interrupted by SIGINT or SIGTERM), or 141 (the reader of stdout has closed it, as in
            `rpsp train --help | head`). After success the function returns, or raises exit code 0 if help was printed.
    """
    owns_process = arguments is None
    if arguments is None:
        arguments = sys.argv[1:]
        replace_unprintable()
    # Before numpy is imported. The regressions are small, and on a busy machine several BLAS threads slow them down.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if os.getcwd() not in sys.path:  # for the user's own modules; last, so that they shadow no others
        sys.path.append(os.getcwd())
    try:
        _install_handlers()
        if owns_process and arguments[:1] in (["train"], ["resume"]):
            sentinel.start()
        _run(arguments)
    except RpspError as error:
        sentence = f"rpsp: {error}".replace("\n", " ")  # it may quote text of several lines
        print("\n".join([sentence, *_notes(error)]), file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(141)
    except BaseException as error:
        # An interrupted import may raise another exception, so also look at the signals received.
        interrupt = error if isinstance(error, KeyboardInterrupt) else next(iter(PENDING), None)
        if interrupt is None or isinstance(error, SystemExit):
            raise
        _exit_interrupted(interrupt, owns_process)
    finally:
        PENDING.clear()  # the signals of this command, not of later code in the same process
        if owns_process:
            flush()
            sentinel.dismiss()


def _run(arguments: list[str]) -> None:
    """Parse the arguments and call the command; without a command, print the help."""
    if arguments[:1] == ["--version"]:
        print(f"rpsp {version('rpsp')}")
        return
    refuse_windows()
    command = parse([*arguments[1:], "--help"] if arguments[:1] in ([], ["help"]) else arguments)
    HANDLERS[type(command)](command)


def _notes(error: BaseException) -> list[str]:
    """Return the notes added to an exception: how to continue."""
    return getattr(error, "__notes__", [])


# ---------------------------------------------------------------------------------------------------------------------
# Signals
# ---------------------------------------------------------------------------------------------------------------------


def _install_handlers() -> None:
    """Handle SIGTERM and SIGINT; SIGINT only if it is not ignored or handled by other code."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Record the signal and raise it as an exception.

    During an import, retry later: the interpreter may crash if the import of a compiled module is interrupted.
    """
    if _importing(frame):
        again = threading.Timer(0.05, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    PENDING.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
    sys.unraisablehook = _ignore_interrupts
    raise PENDING[-1]


def _importing(frame: FrameType | None) -> bool:
    """Return whether this command is importing a module."""
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _ignore_interrupts(lost: Any) -> None:
    """Report an exception that Python could not raise, except interrupts: the run finds those in `PENDING`."""
    if not isinstance(lost.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(lost)


def _exit_interrupted(interrupt: KeyboardInterrupt, owns_process: bool) -> NoReturn:
    """Say how to continue, and exit with 130 (SIGINT) or 143 (SIGTERM)."""
    what = " ".join(_notes(interrupt)) or "nothing was left half-written."
    print(f"rpsp: interrupted; {what}", file=sys.stderr)
    code = 143 if isinstance(interrupt, Terminated) else 130
    if owns_process:  # at once: threads of interrupted compiled code may crash while Python shuts down
        with suppress(OSError):
            sys.stdout.flush()
        sentinel.dismiss()
        os._exit(code)
    sys.exit(code)
