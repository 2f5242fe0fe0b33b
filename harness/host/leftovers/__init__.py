"""What an engine has outside of its processes, and may leave: record, folder, shared memory."""
