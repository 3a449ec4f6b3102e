"""Settings that every test needs: no hub, one thread for tiny models, and a Ctrl-C that reaches
the processes they start."""

import gc
import os
import signal

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell does that to what it starts in the background, and children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("humanlm", deadline=None)  # a busy machine is no error
settings.load_profile("humanlm")

# The files that take longest begin first, so that no process waits for another at the end (with
# --no-loadscope-reorder).
LONG = """
    commands/test_train alignment/test_modes engines/test_verl_step training/test_trainer
    training/test_sharded project/test_run_all commands/test_experiment
    alignment/test_comparison training/test_processes serving/test_service project/test_project
    commands/test_tom rewards/test_faults sdpo/test_method commands/test_humanual
    commands/test_hub alignment/test_sections rewards/test_scoring classmate/test_verifiers
    stories/test_stories commands/test_parsers training/test_sft training/test_own_recipe
    clients/test_cache worlds/test_miniworld
""".split()


def pytest_collection_modifyitems(items):
    def place(item):
        return next(
            (
                i
                for i, name in enumerate(LONG)
                if item.path.with_suffix("").as_posix().endswith(name)
            ),
            len(LONG),
        )

    items.sort(key=place)


def pytest_collection_finish():
    "What the imports made stays until the end, so no collection looks at it again"
    _keep_unseen()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    "So does what a file leaves in caches, such as the trees of all modules"
    yield
    if nextitem and nextitem.path != item.path:
        _keep_unseen()


def _keep_unseen():
    gc.collect()
    gc.freeze()
