"""What all HTML pages share: style sheet, script, colours and number formats."""
