"""The scripts beside the tests are run by them, and hold no tests."""

collect_ignore = ["scripts"]
