"""Training of a LoRA adapter with which a model quotes an answer from a passage, or says that the
passage does not tell it.

    reader_examples    one question with one passage: right ones, absent answers, wrong windows
    ranked_windows     windows that a finder ranks first, from files
    swapped_questions  questions about another name, number or word than the passage's
    name_pattern       names and numbers by their form
    recurring_spans    cloze questions made from the texts
    example_batches    examples as token ids, in batches of about one length
    answer_logits      the model's logits where answers are
    reader_trainer     the loop
    reader_scores      what held-out texts score
    reader_run         one training from the folders to the adapter
"""
