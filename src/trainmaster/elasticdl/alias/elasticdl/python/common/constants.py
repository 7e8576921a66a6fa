"""The modes in which a model file's `feed` is called."""


class Mode:
    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
