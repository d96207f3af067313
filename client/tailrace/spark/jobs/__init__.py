"""Jobs on topics, each one file that runs by `python -m` or `spark-submit` and can be copied."""
