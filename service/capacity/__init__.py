"""Who may use how much of the process: memory, CPU time, places."""
