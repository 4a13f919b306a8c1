"""The cheapest way of quantising that reaches a goal."""
