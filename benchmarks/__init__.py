"""Each figure that the README claims, as a command."""
