"""What the processes of the broker and of the operator share: settings of an environment, and logs.

Charter: imports `tailrace.settings` alone.
"""
