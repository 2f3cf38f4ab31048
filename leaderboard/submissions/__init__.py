"""What a maintainer sees of a change before anything runs."""
