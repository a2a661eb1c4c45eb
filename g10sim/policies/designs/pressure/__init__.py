"""Planning of the policy ``pressure``: what is to come, where bytes wait, and what leaves and returns now."""
