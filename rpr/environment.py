"""The environment variables that rpr's libraries and processes see: without those by which other launchers, notebooks,
git hooks and W&B would make a run another rank, another repository's, or another run.
"""

import os
import re
import sys
from pathlib import Path

from rpr.paths import HERE, HIDDEN

# Which process of which job this is: to torchrun; to Lightning, SLURM (whose settings, such as SLURM_CONF, stay), LSF
# and MPI. And which repository git works on (its settings, such as the checkouts it may read, stay).
_OF_LAUNCHERS = re.compile(
    r"((GLOBAL|LOCAL|GROUP|ROLE|NODE)_)?RANK|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_\w+"
    r"|(PL|LT)_\w+|STANDALONE_PORT|(LSB|JSM|OMPI|PMI|PMIX|MPI|MV2|FLUX|PALS)_\w+"
    r"|SLURM_(JOB\w*|ARRAY_\w+|STEP\w*|PROCID|LOCALID|NODEID|NTASKS\w*|NPROCS|NNODES|NODELIST|TASKS?_\w+|GTIDS)"
    r"|GIT_(?!CONFIG_(COUNT|KEY_\d+|VALUE_\d+|GLOBAL|SYSTEM|NOSYSTEM)$)\w+"
)
# Read by torch when it is loaded, or at its first allocation. Large tensors in huge pages, where Linux offers them: a
# CPU step touches fresh memory every time. oneDNN multiplies bfloat16 matrices on a CPU with code that it generates for
# each shape, and batches have many shapes: its caches of 1,024 each grew to over 1 GB.
MEMORY_VARIABLES = {"THP_MEM_ALLOC_ENABLE": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
_OF_WANDB_RUN = re.compile(r"WANDB_(RUN_ID|SWEEP_ID|SWEEP_PARAM_PATH|RESUME|RESUME_FROM|FORK_FROM|LAUNCH\w*|SERVICE)")


def is_first_rank() -> bool:
    """Whether this process is the first of torchrun's, or is not one of them."""
    return os.environ.get("RANK", "0") == "0"


def set_up() -> None:
    """Set what libraries read when they are loaded, for this command and the processes that it will start."""
    os.environ["PYTHONSAFEPATH"] = "1"
    for name, value in MEMORY_VARIABLES.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # bench measures memory with torch's profiler, which would log
    os.environ["MPLBACKEND"] = "agg"  # Lightning imports matplotlib, and a notebook's backend needs its kernel
    if not sys.flags.safe_path and Path(sys.path[0]).absolute() == HERE.parent:  # as `python -m rpr` in a checkout does
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *([path] if path else [])])


def hide_foreign() -> None:
    """Remove the variables of other programs, before a library reads them; called once the settings, which may name
    them, are composed. Folders may name them later: `user_path` finds them under another name.
    """
    for name in [name for name in os.environ if _OF_LAUNCHERS.fullmatch(name) or _OF_WANDB_RUN.fullmatch(name)]:
        os.environ[HIDDEN + name] = os.environ.pop(name)


def for_child() -> dict[str, str]:
    """The environment for a process that is no rank. Python imports nothing from the current folder, where another
    checkout or a `tokenize.py` may be.
    """
    own = {name: value for name, value in os.environ.items() if not _OF_LAUNCHERS.fullmatch(name)}
    return own | {"PYTHONSAFEPATH": "1"}
