"""Mistakes of people who write policies: the source of ``mine.py``, and what ``g10sim run`` says about it."""

_HEAD = """\
from g10sim.policies.base import Policy, Requirements
from g10sim.policies.moves import Drop, Evict, Fetch, Free, Protect
from g10sim.policies.plan import MigrationPlan


class Mine(Policy):
    \"\"\"A policy.\"\"\"

    name, label, paper = "mine", "Mine", "none"

"""


def hook(body, head="def on_kernel_start(self, view):"):
    """Return a plug-in with one hook."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{_HEAD}    {head}\n{lines}"


MISTAKES = {
    "a hook is misspelt": (
        hook("return []", "def on_kernel_begin(self, view):"),
        "found 'on_kernel_begin', which nobody asks (did you mean 'on_kernel_end'?); allowed: the names",
    ),
    "an attribute is misspelt": (
        _HEAD + "    requirement = None\n",
        "found 'requirement', which nobody asks (did you mean 'requirements'?); allowed: the names",
    ),
    "a hook takes no view": (
        hook("return []", "def on_kernel_start(self):"),
        "takes 1 positional argument but 2 were given; allowed: on_kernel_start(self, view: 'PolicyView')",
    ),
    "a hook raises": (hook("return [1][2]"), "on_kernel_start raised IndexError: list index out of range ("),
    "the view is asked for what it has not": (
        hook("return [Free(t) for t in view.is_ded(0)]"),
        "has no attribute 'is_ded' (did you mean 'is_dead'?); allowed: ",
    ),
    "the view is written": (
        hook("view.kernel = 0"),
        "property 'kernel' of 'PooledView' object",
    ),
    "a tensor by its name": (
        hook("return [Fetch('w')]"),
        "kernel 0 (Kernel0): found unknown tensor 'w'; allowed: 0 to 3",
    ),
    "a tensor by its object": (
        hook("return [Fetch(view.trace.tensors[0])]"),
        "found unknown tensor Tensor(id=0, name='w'",
    ),
    "a tensor that the trace has not": (
        hook("return [Fetch(1_000_000)]"),
        "found unknown tensor 1000000; allowed: 0 to 3",
    ),
    "numbers instead of moves": (hook("return [0, 1]"), "found 0; allowed: moves, such as Fetch(tensor)"),
    "one number instead of moves": (hook("return 7"), "found 7; allowed: moves, such as Fetch(tensor)"),
    "a class instead of a move": (
        hook("return [Fetch]"),
        "moves.Fetch'>; allowed: moves",
    ),
    "a tier that the machine has not": (
        hook("return [Evict(3, 'nvme')]"),
        "found unknown tier 'nvme'; allowed: host, ssd",
    ),
    "eviction of what the kernel needs": (
        hook("return [Evict(0)]"),
        "evicts tensor 'w', which the running kernel needs; allowed: tensors that",
    ),
    "freeing what is read again": (
        hook("return [Free(0)]"),
        "frees tensor 'w', which will be read again; allowed: dead tensors",
    ),
    "dropping what cannot be computed again": (
        hook("return [Drop(0)] if view.kernel == 1 else []"),
        "drops tensor 'w'",
    ),
    "victims by their names": (
        hook("return ['a', 'b']", "def choose_victims(self, view):"),
        "victim 'a' is no tensor of the trace",
    ),
    "victims that are no list": (
        hook("return 3.5", "def choose_victims(self, view):"),
        "choose_victims raised TypeError: found 3.5; allowed: numbers of tensors",
    ),
    "moves instead of a plan": (
        hook("return [Fetch(0)]", "def plan_job(self, job, system, behaviour):"),
        "]; allowed: a MigrationPlan (see MigrationPlan.ordered), or None",
    ),
    "a planner without its arguments": (
        hook("return None", "def plan_job(self, job):"),
        "takes 2 positional arguments but 4 were given; allowed: plan_job(self, job: 'Job'",
    ),
    "one plan for several jobs": (
        hook("return []", "def plan(self, workload, system, behaviour):"),
        "found 0 plans; allowed: one per job, 1",
    ),
    "requirements that are none": (
        _HEAD + "    requirements = {'addresses': 'own'}\n",
        "requirements: found {'addresses': 'own'}; allowed: Requirements(...)",
    ),
    "a requirement that is misspelt": (
        _HEAD + "    requirements = Requirements(adresses='own')\n",
        "unexpected keyword argument 'adresses' ({mine}, line 11, in Mine",
    ),
    "a requirement with another value": (
        _HEAD + "    requirements = Requirements(addresses='mine')\n",
        "addresses: found 'mine'; allowed: own, pooled ({mine}, line 11, in Mine;",
    ),
    "no policy at all": (
        "class Mine:\n    pass\n",
        "found <class 'mine.Mine'>; allowed: a subclass",
    ),
    "another name of the class": (
        _HEAD.replace("class Mine", "class Mien"),
        "(did you mean 'Mien'?); allowed: Mien",
    ),
    "a syntax error": (
        _HEAD + "    def on_kernel_start(self, view)\n        return []\n",
        "expected ':' (mine.py, line 11)",
    ),
    "a library that is not there": (
        "import no_such_library\n" + _HEAD,
        "No module named 'no_such_library' ({mine}, line 1, in <module>)",
    ),
    "a parameter without a default": (
        hook("self.depth = depth", "def __init__(self, depth):"),
        "required positional argument: 'depth'",
    ),
    "a constructor that raises": (
        hook("raise ValueError('odd')", "def __init__(self):"),
        "odd ({mine}, line 12, in __init__)",
    ),
}
