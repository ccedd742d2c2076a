package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// withKeys returns a command that runs do with the keys of the key file.
func withKeys(do func(context.Context, invocation, *keyring) error) action {
	return func(ctx context.Context, o invocation) error {
		ring, err := loadKeys(o.cfg.keysPath(), o.cfg.credentialsDir, false)
		if err != nil {
			return err
		}
		return do(ctx, o, ring)
	}
}

// errBreaks is returned for an audit log with a break that is new. It means exit status 3.
var errBreaks = errors.New("the audit log has a new break")

// verifyAuditCommand is "cairn audit verify". It compares the audit log with its seals. It adds a
// row for each break that the log does not tell of yet, and fails if it added one. With --head, it
// also fails if the log tells of a break after that seal, or does not hold the seal.
func verifyAuditCommand(ctx context.Context, o invocation, ring *keyring) error {
	const query = `
		SELECT
			EXISTS (SELECT FROM audit_seals WHERE seq = $1 AND mac = $2) AS has_head,
			(SELECT count(*) FROM audit_unsealed) AS waiting`

	head, err := parseHead(o.option("head", "0:00"))
	if err != nil {
		return fmt.Errorf("--head: %w; %w", err, errUsage)
	}

	c, err := inSnapshot(ctx, o.db, func(ctx context.Context, q querier) (chain, error) {
		return readChain(ctx, q, ring, seal{seq: beforeAll}, math.MaxInt64)
	})
	if err != nil {
		return err
	}

	// The instances seal rows meanwhile, so the findings are recorded under the lock.
	var added []string
	err = underLock(ctx, o.db, lockSeal, func(tx pgx.Tx) error {
		unsealed, err := queueUnsealed(ctx, tx)
		if err != nil {
			return err
		}
		added, err = recordBreaks(ctx, tx, ring, append(c.findings, unsealed...))
		return err
	})
	if err != nil {
		return err
	}

	breaks, err := listBreaks(ctx, o.db, ring)
	if err != nil {
		return err
	}
	log, err := collectOne[struct {
		HasHead bool
		Waiting int64
	}](ctx, o.db, nil, "look for the head", query, head.seq, head.mac)
	if err != nil {
		return err
	}

	isNew := len(added) > 0
	for _, b := range breaks {
		at := b.At.UTC().Format(time.RFC3339)
		for _, finding := range b.note.Findings {
			fmt.Fprintf(o.stdout, "%s: %s\n", at, finding)
		}
		isAfterHead := b.Seq == nil || *b.Seq > head.seq
		if head.seq > 0 && isAfterHead {
			isNew = true
		}
	}
	err = o.print(nil, nil, "head %s, rows that wait for their seal: %d",
		c.newest.head(), log.Waiting)

	if head.seq > 0 && !log.HasHead {
		return fmt.Errorf("%w: it does not hold the seal %s: it was cut off or rewritten, "+
			"or the seal is older than the last prune",
			errBreaks, head.head())
	}
	if isNew {
		return errBreaks
	}
	return err
}

// pruneAuditCommand is "cairn audit prune". It fails if the rows that it would remove have a break
// that is new.
func pruneAuditCommand(ctx context.Context, o invocation, ring *keyring) error {
	date, err := time.Parse(time.DateOnly, o.options.Get("before"))
	if err != nil {
		return fmt.Errorf("--before takes a date like 2026-01-31: %w", errUsage)
	}

	removed, found, err := pruneAudit(ctx, o.db, ring, date)
	if len(found) > 0 {
		fmt.Fprintln(o.stdout, strings.Join(found, "\n"))
		return fmt.Errorf("%w: nothing was removed; look into it before you prune again", errBreaks)
	}
	return o.print(err, nil, "removed %s from the audit log", plural(removed, "row"))
}
