"""Progress of long uploads on a terminal."""
