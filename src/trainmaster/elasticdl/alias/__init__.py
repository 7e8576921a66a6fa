"""The packages `elasticai_api`, `elasticdl_preprocessing` and `elasticdl` for programs that cannot change their imports.

They are on nobody's path: a job puts this directory on it, with the Python of the program.

    command: sh -c 'PYTHONPATH=$PYTHONPATH:$(python -m trainmaster.elasticdl.alias) python train.py'

Where an original is installed too, it comes first. Of `elasticdl` there is what programs and model files import.
"""
