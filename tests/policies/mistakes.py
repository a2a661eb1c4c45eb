"""Mistakes of people who write policies: the source of ``mine.py``, and what ``g10sim run`` says about it."""

_HEAD = """\
from g10sim.policies.interface.policy import Policy, Requirements
from g10sim.policies.interface.moves import Drop, Evict, Fetch, Free, Protect
from g10sim.policies.interface.plan import MigrationPlan


class Mine(Policy):
    \"\"\"A policy.\"\"\"

    name, label, paper = "mine", "Mine", "none"

"""


def hook(body, head="def on_kernel_start(self, view):"):
    """Return a plug-in with one hook."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return f"{_HEAD}    {head}\n{lines}"


def contiguous(body, head):
    """Return a plug-in for contiguous memory with one hook."""
    names = "from g10sim.policies.interface.policy import Compressed, Place, PlannedPlace\n"
    return names + hook(body, f"requirements = Requirements(placement='contiguous')\n\n    {head}")


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
        "property 'kernel' of 'View' object",
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
        "victim 'a' is no tensor of the trace; allowed: 0 to 3, as int ({mine}, line 11)",
    ),
    "a victim that is a truth value": (
        hook("return [True]", "def choose_victims(self, view):"),
        "victim True is no tensor of the trace; allowed: 0 to 3, as int ({mine}, line 11)",
    ),
    "an option of a move of another type": (
        hook("return [Evict(3, size_bytes='1 MB')]"),
        "found size_bytes '1 MB' of move 'evict'; allowed: an int or None ({mine}, line 11)",
    ),
    "a tier in a list": (
        hook("return [Evict(3, ['host'])]"),
        "found unknown tier ['host']; allowed: host, ssd ({mine}, line 11)",
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
    "a hook in capitals": (
        hook("return []", "def onKernelStart(self, view):"),
        "found 'onKernelStart', which nobody asks (did you mean 'on_kernel_start'?); allowed: the names",
    ),
    "a hook that is no method": (
        _HEAD + "    on_kernel_start = [Fetch(0)]\n",
        "on_kernel_start: found [Fetch(tensor=0, recalls=False)]; allowed: a method",
    ),
    "requirements as a method": (
        _HEAD + "    def requirements(self):\n        return Requirements()\n",
        "; allowed: a value, or a method with @property",
    ),
    "a requirement of another type": (
        _HEAD + "    requirements = Requirements(unlimited_memory='no')\n",
        "unlimited_memory: found 'no'; allowed: True or False ({mine}, line 11, in Mine;",
    ),
    "a label that is no text": (
        _HEAD.replace('"Mine", "none"', '3, "none"'),
        "label: found 3; allowed: text",
    ),
    "a look that is none": (
        _HEAD + "    look = {'colour': 'red'}\n",
        "look: found {'colour': 'red'}; allowed: g10sim.looks.Look(...)",
    ),
    "exemptions without reasons": (
        _HEAD + "    check_exemptions = ['reusable']\n",
        "check_exemptions: found ['reusable']; allowed: a mapping of checks to reasons",
    ),
    "a note that is no text": (
        _HEAD + "    @property\n    def note(self):\n        return 3\n",
        "note raised TypeError: found 3; allowed: text ({mine}, line 11)",
    ),
    "a word instead of moves": (
        hook("return 'fetch'"),
        "found 'fetch'; allowed: moves, such as Fetch(tensor) and Evict(tensor) ({mine}, line 11)",
    ),
    "one number instead of a set of tensors": (
        hook("return [Protect(0)]"),
        "found 0 as tensors; allowed: a set of tensors ({mine}, line 11)",
    ),
    "a number of another library": (
        "import numpy as np\n" + hook("return [Fetch(np.int64(1))]"),
        "found unknown tensor np.int64(1); allowed: 0 to 3 (the trace has 4 tensors), as int ({mine},",
    ),
    "a plan of moves without kernels": (
        hook("return MigrationPlan((Fetch(0),))", "def plan_job(self, job, system, behaviour):"),
        "move 0: found Fetch(tensor=0, recalls=False); allowed: Planned(kernel, move) ({mine}, line 11)",
    ),
    "a plan of pairs": (
        hook("return MigrationPlan.ordered([(0, Fetch(0))])", "def plan_job(self, job, system, behaviour):"),
        "found (0, Fetch(tensor=0, recalls=False)); allowed: Planned(kernel, move) ({mine}, line 12, in",
    ),
    "a plan in another order": (
        "from g10sim.policies.interface.plan import Planned\n"
        + hook(
            "return MigrationPlan((Planned(2, Fetch(0)), Planned(1, Fetch(0))))",
            "def plan_job(self, job, system, behaviour):",
        ),
        "move 1: found kernel 1 after kernel 2; allowed: kernels in ascending order",
    ),
    "a plan with half a kernel": (
        "from g10sim.policies.interface.plan import Planned\n"
        + hook(
            "return MigrationPlan((Planned(1.5, Fetch(0)),))", "def plan_job(self, job, system, behaviour):"
        ),
        "plan, move 0: found kernel 1.5; allowed: an int",
    ),
    "places by their names": (
        contiguous("return ['left'] * 4", "def places(self, job, plan, behaviour):"),
        "places puts tensor 'w' at 'left'; allowed: a Place or a PlannedPlace",
    ),
    "no places": (
        contiguous("return None", "def places(self, job, plan, behaviour):"),
        "places raised TypeError: 'NoneType' object is not iterable",
    ),
    "a planned place with half an address": (
        contiguous("return [PlannedPlace((0.5,))] * 4", "def places(self, job, plan, behaviour):"),
        "places raised ValueError: addresses_bytes: found 0.5; allowed: an int ({mine}, line 15, in places)",
    ),
    "a fallback without addresses": (
        contiguous(
            "return [PlannedPlace((0,), Place.BUFFER)] * 4", "def places(self, job, plan, behaviour):"
        ),
        "fallback: found <Place.BUFFER: 'buffer'>; allowed: None, Place.LEFT, Place.RIGHT, ",
    ),
    "compressed sizes that are numbers": (
        contiguous("return {1: 1000}", "def compressed(self, job, plan):"),
        "compressed: found 1000 for tensor 1; allowed: Compressed(moved_bytes, index_bytes) for a tensor",
    ),
    "an index of less than nothing": (
        contiguous("return {1: Compressed(1000, -1)}", "def compressed(self, job, plan):"),
        "compressed raised ValueError: index_bytes: found -1; allowed: an int from 0 ({mine}, line 15,",
    ),
    "an order with a tensor that the kernel does not use": (
        contiguous("return [0, 1, 2, 3]", "def allocation_order(self, kernel):"),
        "kernel 0: allocation_order raised ValueError: found (0, 1, 2, 3); allowed: the kernel's tensors",
    ),
    "no order": (
        contiguous("return None", "def allocation_order(self, kernel):"),
        "allocation_order raised TypeError: 'NoneType' object is not iterable",
    ),
    "less than no host memory": (
        hook("return -1", "def host_reserved(self, job):"),
        "host_reserved: found -1; allowed: an int from 0",
    ),
    "a move of one's own that fails": (
        "from dataclasses import dataclass\n"
        "from g10sim.policies.interface.contract import TensorMove\n"
        "@dataclass(frozen=True)\n"
        "class Odd(TensorMove):\n"
        "    name = 'odd'\n"
        "    def apply(self, state):\n"
        "        state.fetch(77)\n" + hook("return [Odd(0)]"),
        "kernel 0 (Kernel0): move 'odd' raised IndexError: list index out of range ({mine}, line 7,",
    ),
    "a tensor that the view does not know": (
        hook("return [] if view.next_use(44) else []"),
        "allowed: view.next_use(tensor: 'int') -> 'int', with the number of a tensor ({mine}, line 12,",
    ),
    "neither steady nor not": (
        hook("pass", "def is_steady(self, view):"),
        "is_steady raised TypeError: found None; allowed: True, False ({mine}, line 11)",
    ),
    "no other kernels": (
        hook("pass", "def choose_kernels(self, trace, system):"),
        "choose_kernels raised TypeError: found None; allowed: a Trace ({mine}, line 11)",
    ),
    "no design to settle on": (
        hook("pass", "def settle(self, obstacle):"),
        "settle raised TypeError: found None; allowed: a policy ({mine}, line 11)",
    ),
    "leaving the program": (
        "import sys\n" + hook("sys.exit(3)"),
        "on_kernel_start raised SystemExit: 3 ({mine}, line 13, in on_kernel_start)",
    ),
    "a parameter that is not kept": (
        hook("pass", "def __init__(self, *, depth: int = 3):"),
        "parameter 'depth': found no such attribute; allowed: what was given, stored as self.depth",
    ),
}
