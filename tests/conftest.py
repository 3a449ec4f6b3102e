"""Settings that every test needs: no hub, one thread for tiny models, and a Ctrl-C that reaches the processes they start."""
import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell does that to what it starts in the background, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
