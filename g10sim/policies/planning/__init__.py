"""The machine, timeline, channel and occupancy that planners share."""
