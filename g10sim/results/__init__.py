"""From records to numbers: metric definitions, tables, timelines."""
