"""Stimuli into events, state into actions: `decisions.decide`, `plan.plan`."""
