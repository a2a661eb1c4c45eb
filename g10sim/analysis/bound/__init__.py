"""Lower bounds on the time of an iteration, which no policy can beat: closed form and linear program."""
