package main

import (
	"context"
	"time"
)

// era is a time in which the database answers, or one in which it does not. The listener tells them apart.
type era struct {
	context.Context                    // ends when the database is found not to answer
	end             context.CancelFunc // nil while it does not: each request tries it anew
	patience        time.Duration      // of what begins then; 0: as much as it has by itself
}

// newEra begins a time in which the database answers.
func newEra() *era {
	ctx, end := context.WithCancel(context.Background())
	return &era{Context: ctx, end: end}
}

// bound is ctx with a time limit, ended by the end of the era too. What it is used for is over when release is called.
func (e *era) bound(ctx context.Context, limit time.Duration) (bounded context.Context, release func()) {
	if e.patience > 0 {
		limit = e.patience
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	unlink := context.AfterFunc(e, cancel)
	return bounded, func() {
		unlink()
		cancel()
	}
}

// databaseDown is that the database does not answer. What waits for it ends, connections to it are used no more,
// since it may be another server that answers next, and what was heard of principals counts no more.
func (s *server) databaseDown(err error) {
	if before := s.era.Swap(&era{Context: context.Background(), patience: probePatience}); before.end != nil {
		s.log.Warn("the database does not answer", "error", err)
		s.outages.Add(1)
		s.db.Reset()
		before.end()
	}
	s.principals.mute()
}
