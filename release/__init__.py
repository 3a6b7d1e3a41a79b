"""What makes a release: the packages, and their checks."""
