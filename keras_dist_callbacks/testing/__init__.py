"""Real local clusters, real kills and exact comparison, for proving that training resumes."""
