"""Mixtures: which component an element comes from, at every position of a whole stream and of its
lanes.
"""
