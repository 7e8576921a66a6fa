"""The state machine of a job: events, state, stimuli, actions, reasons, and what readers are shown of them."""
