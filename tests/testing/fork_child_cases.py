"""Programs whose output and end show how a process began and how it ends."""

from __future__ import annotations

BEGINNINGS = {
    "names and paths": """
import sys, os
print(__name__, __file__, sys.argv, sys.path, sys.orig_argv, sorted(globals()))
print(__spec__ and __spec__.name, __package__, __builtins__)
print(sys.modules["__main__"].__dict__ is globals(), type(__loader__).__name__, os.getcwd(), sys.flags)
print(sys._getframe().f_code.co_filename)
""",
    "environment": """
import os, subprocess
own = {k: v for k, v in os.environ.items()}
print(own, os.environb[b"STRANGE"])
print(sorted(subprocess.run(["/usr/bin/env"], stdout=subprocess.PIPE).stdout.splitlines()))
""",
    "descriptors": """
import os
for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
    try: print(fd, os.readlink(f"/proc/self/fd/{fd}"), os.get_inheritable(fd), os.get_blocking(fd))
    except OSError: pass  # the listing's own
""",
    "streams": """
import sys
for s in (sys.stdin, sys.stdout, sys.stderr):
    print(s, s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(), type(s.buffer).__name__)
print(sys.stdin.read() == "", sys.stdout is sys.__stdout__)
""",
    "session": """
import os
me = os.getpid()
print(os.getsid(0) == me, os.getpgid(0) == me, os.umask(0o22), os.nice(0))
""",
    "signals": """
import signal, sys
print([(int(s), str(signal.getsignal(s)).split(" at ")[0]) for s in signal.valid_signals()])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGINT))
import faulthandler, threading, atexit
print(faulthandler.is_enabled(), threading.enumerate() == [threading.main_thread()], threading.current_thread().name)
""",
    "the module beside the program": """
import beside
print(beside.__name__, beside.__file__)
""",
    "a spawned child finds the program": """
import multiprocessing
def work(queue): queue.put((__name__, 7))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    print(queue.get(timeout=30))
    child.join()
""",
}

ENDINGS = {
    "the end": "print('hello')",
    "an error": "def f():\n    raise ValueError('why')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    f()\n",
    "an annotation that is evaluated": "def f(x: not_defined): pass",
    "a syntax error": "def f(:\n",
    "exit 3": "import sys; sys.exit(3)",
    "exit 256 + 7": "import sys; sys.exit(263)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit None": "import sys; sys.exit()",
    "exit True": "import sys; sys.exit(True)",
    "exit with a text": "import sys; sys.exit('a text')",
    "exit in a finally": "try:\n    raise ValueError\nfinally:\n    raise SystemExit(9)",
    "os._exit": "import os; print('lost?', flush=True); os._exit(4)",
    "SIGKILL": "import os; print('kept', flush=True); os.kill(os.getpid(), 9)",
    "SIGTERM": "import os; os.kill(os.getpid(), 15)",
    "SIGINT": "import os, signal; os.kill(os.getpid(), signal.SIGINT); [i for i in range(10**6)]",
    "KeyboardInterrupt, with what ends after it": """
import atexit
atexit.register(print, "at exit")
raise KeyboardInterrupt
""",
    "a subclass of KeyboardInterrupt": "class Mine(KeyboardInterrupt): pass\nraise Mine",
    "an exception hook": """
import sys, atexit
def hook(kind, error, trace):
    print("hook", kind, error, trace.tb_frame.f_code.co_name)
sys.excepthook = hook
atexit.register(print, "at exit")
raise ValueError("why")
""",
    "a thread that goes on": """
import threading, time, atexit
def work():
    time.sleep(0.3)
    print("the thread is done")
atexit.register(print, "at exit")
threading.Thread(target=work).start()
print("main is done")
""",
    "a thread that goes on after an error": """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.3), print("done"))).start()
raise ValueError
""",
    "a daemon thread": """
import threading, time
def work():
    while True:
        time.sleep(0.001)
        len(values)
values = [1]
threading.Thread(target=work, daemon=True).start()
print("main is done")
""",
    "atexit that fails and goes on": """
import atexit, sys
atexit.register(print, "last")
atexit.register(lambda: sys.stderr.write("first\\n"))
""",
    "a pool that is not shut down": """
import concurrent.futures, time
pool = concurrent.futures.ThreadPoolExecutor(2)
pool.submit(lambda: (time.sleep(0.2), print("future done")))
""",
    "text that was not flushed": "import sys; sys.stdout.write('no line end')",
    "a file left open": """
import atexit
file = open("out", "w")
file.write("text")
def keep(): return file
atexit.register(keep)
""",
    "standard output closed": "import sys\nprint('x')\nsys.stdout.close()",
    "standard error is None": "import sys\nsys.stderr = None\nraise ValueError",
}
