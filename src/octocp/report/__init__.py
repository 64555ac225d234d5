"""Reading a plan: idle-time statistics, the terminal view, files for other tools."""
