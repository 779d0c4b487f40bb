"""What the trainings of readers and finders share.

training_pairs       questions with the offsets of answers and passages, and their texts
training_run         one training: steps, checkpoints, scores of held-out texts, its record
trainer              the loop of steps, its optimiser and settings
training_steps       learning rate, gradients
training_checkpoint  files from which training goes on
training_folder      where a training's files go
"""
