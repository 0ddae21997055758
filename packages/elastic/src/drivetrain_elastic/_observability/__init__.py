"""What a process shows of itself: metrics, times of steps, its last operations, stacks."""
