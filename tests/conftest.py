"""What all tests need."""

import signal

# Background jobs and nohup ignore these, and programs that are started from here would inherit it: some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
