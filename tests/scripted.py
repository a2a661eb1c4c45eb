"""Transfers that move nothing, for tests of time itself."""


class Scripted:
    """Change at given cycles; ``visits`` are the cycles that they were brought up to."""

    def __init__(self, *changes):
        self.changes = list(changes)
        self.visits = []
        self.shared = []
        self.settled = 0
        self.now = 0

    def next_change(self, now=None):
        assert now in (None, self.now)
        return self.changes[0] if self.changes else None

    def advance(self, now, jobs=None):
        self.visits.append(now)
        self.now = now
        while self.changes and self.changes[0] <= now:
            del self.changes[0]

    def follow(self, last, *, skips):
        if not self.changes or self.changes[0] > last:
            return None
        self.advance(self.changes[0])
        return self.now

    def settle(self):
        self.settled += 1

    def news(self, jobs):
        return jobs

    def count_moves(self):
        pass

    def changed(self, jobs=(), now=None, *, others=True):
        assert now in (None, self.now)
        self.settle()
        self.shared.append((self.now, frozenset(jobs)))
