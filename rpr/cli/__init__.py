"""The console command: arguments, help, completion, exit codes."""
