"""Planning of the policy ``stream``: what to ask for now, and what makes room for it."""
