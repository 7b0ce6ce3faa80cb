"""Where a library's weight preparation puts each element: rules written down independently of the code that they judge."""
