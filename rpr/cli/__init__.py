"""The console command: arguments, help, exit codes."""
