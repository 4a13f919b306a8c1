"""From samples to ranges: statistics of each activation, streamed, and the range each gets."""
