"""Object stores on loopback, and a faulty network before them."""
