"""How a training is stopped early: signals, preemption notices, the coordinated stop of all workers, the last backup.

`controller.py` decides; the other modules report to it.
"""
