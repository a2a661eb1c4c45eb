"""Names in policy classes: what looks like a hook or an attribute of ``Policy`` and is none."""

from __future__ import annotations

from difflib import get_close_matches

from g10sim.errors import PolicyError
from g10sim.policies.base import Policy
from g10sim.registry import nearest

_HOOK = "on_"
_CLOSE = 0.8


def check_names(policy: type[Policy]) -> None:
    """Refuse a policy whose class has a misspelt hook or attribute: it would never be asked, without a word.

    That is a name that starts like a hook (``on_``) or is close to a public name of ``Policy``. Raises
    PolicyError with the nearest name.
    """
    known = [name for name in dir(Policy) if not name.startswith("_")]
    bases = policy.__mro__[: policy.__mro__.index(Policy)]
    own = (vars(cls) for cls in bases if not cls.__module__.startswith("g10sim."))
    for name in (name for names in own for name in names if not name.startswith("_") and name not in known):
        if name.startswith(_HOOK) or get_close_matches(name, known, 1, _CLOSE):
            hooks = [hook for hook in known if hook.startswith(_HOOK)]
            near = nearest(name, hooks) or nearest(name, known)
            raise PolicyError(
                f"policy '{policy.name or policy.__name__}': found '{name}', which nobody asks{near}; "
                f"allowed: the names of Policy ({', '.join(hooks)}, ...), or another name"
            )
