"""What several verbs share: options, output, units, progress."""
