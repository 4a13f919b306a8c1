"""Signs that samples or preprocessing are wrong, each with its remedy."""
