"""Side by side with peers: every script measures both in the same run and prints the ratio."""
