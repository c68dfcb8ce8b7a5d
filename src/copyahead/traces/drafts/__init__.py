"""What a draft model would have drafted on recorded text: asked once, replayed at will.

draft_file      the file: a header, and the drafts of one request after another
windows         how much of a long text the draft model is shown
asking          the draft model's likeliest token at each place, and how it goes on from a wrong one
recording       which requests of a trace are asked about, and where an interrupted run goes on
recorded        the record as a drafter, with its passes counted
beside          copies and that drafter by each rule
"""
