"""The scripts as the tests run them: refusing undeclared keys, and on request broken on purpose."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from fleet.scripts import sources

# Cluster routes a script by its declared keys, and one made up inside it may lie elsewhere. Servers do not check.
_DECLARED_ONLY = """
local redis = (function(real)
  local declared = {}
  for _, key in ipairs(KEYS) do declared[key] = true end
  return {call = function(command, key, ...)
    if command == 'TIME' then return real.call(command) end
    if not declared[key] then error('undeclared key ' .. tostring(key) .. ' for ' .. command) end
    return real.call(command, key, ...)
  end}
end)(redis)
"""


@dataclass(frozen=True)
class Mutation:
    """A line of Lua that somebody might lose; ``old`` occurs in each of ``scripts``."""

    name: str
    scripts: tuple[str, ...]
    old: str
    new: str


_LEASE = "redis.call('ZADD', KEYS[1], num(now + tonumber(ARGV[9]) + tonumber(ARGV[10])), id)"
_LEADS = "return l[1] == owner and l[2] == term and tonumber(l[3]) >= now"
_GO_ON = "local function go_on_when_full(zset) redis.call('ZREM', zset, '') end"
_KNOWN = "if state == 'ready' then return {'DUP', position(id, KEYS[T_READY], 12)} end"
_UNDUE = "if not due then"
_HELD = "redis.call('ZADD', KEYS[1], num(now + tonumber(ARGV[4])), ARGV[2])"
_CLAIMED = "if redis.call('HGET', KEYS[{}], 'claim') ~= ARGV[3] then return 0 end"
_WAITS_HERE = "redis.call('ZSCORE', KEYS[T_READY], id) end"
_PLACES = ("redeem", "cancel", "abandon", "bury", "putback")

MUTATIONS: tuple[Mutation, ...] = (
    Mutation("claim ignores dead gateways", ("claim",), "not alive(KEYS[3], c.gateway, now, grace)", "false"),
    Mutation("claim forgets its answers", ("claim",), "if before then return cmsgpack.unpack(before) end", ""),
    Mutation(
        "claim leaves the ticket ready", ("claim",), f"      unqueue(ready, vt, since, id)\n      {_LEASE}", _LEASE
    ),
    Mutation("claim takes no lease", ("claim",), _LEASE, ""),
    Mutation("virtual time stands still", ("claim",), "redis.call('HSET', vt, '*', start)", "v = v"),
    Mutation("the lease stays", _PLACES, "  redis.call('ZREM', KEYS[T_LEASE], id)\n  unqueue", "  unqueue"),
    Mutation("a returned ticket keeps its lease", ("putback",), "\nredis.call('ZREM', KEYS[T_LEASE], id)\n", "\n"),
    Mutation("leases end at once", ("putback", "overdue"), "grace or deadline > now", "grace"),
    Mutation("any grant can be declined", ("putback",), "elseif ARGV[6] ~= t[2] then", "elseif false then"),
    Mutation("any grant redeems", ("redeem",), "t[2] == ARGV[6]", "true"),
    Mutation("old place across epochs", ("putback", "enqueue"), "if v[2] and v[2] == epoch then", "if true then"),
    Mutation("a kept place serves twice", ("enqueue",), "if again then redis.call('DEL', KEYS[11]) end", ""),
    Mutation("a kept place is paid for twice", ("enqueue",), "place.finish = place.paid --", "--"),
    Mutation("enqueue is not idempotent", ("enqueue",), _KNOWN, ""),
    Mutation("enqueue moves a granted ticket", ("enqueue",), "if state then return {'DUP', 0} end", ""),
    Mutation("no bound on the waiting", ("enqueue",), "if waiting >= tonumber(ARGV[10]) then", "if false then"),
    Mutation("tenants are not charged", ("enqueue",), "finish = start + price", "finish = start"),
    Mutation("ties by id", ("enqueue",), "start + TIE * arrivals", "start"),
    Mutation(
        "idle bands keep their time", ("claim", *_PLACES), "if redis.call('EXISTS', ready) == 0 then", "if false then"
    ),
    Mutation("no term check", ("publish", "fail", "take", "resign"), _LEADS, "return true"),
    Mutation("no term check where a queue is forgotten", ("forget_queue",), _LEADS, "return true"),
    Mutation("a queue is forgotten with its tickets", ("forget_queue",), "redis.call('EXISTS', KEYS[3]) == 1 or ", ""),
    Mutation("a queue is forgotten with its jobs", ("forget_queue",), " or redis.call('EXISTS', KEYS[4]) == 1", ""),
    Mutation("a queue is never forgotten", ("forget_queue",), "redis.call('HDEL', KEYS[2], ARGV[4])", ""),
    Mutation(
        "nobody finds a returned job", ("job_return",), "redis.call('HSETNX', KEYS[J_DEMAND], j.model, num(now))", ""
    ),
    Mutation("nobody finds a returned ticket", ("putback",), "redis.call('HSETNX', KEYS[10], ARGV[3], num(now))", ""),
    Mutation("no term check where jobs fail", ("job_fail",), _LEADS, "return true"),
    Mutation("no term check where loads are counted", ("job_loads",), _LEADS, "return true"),
    Mutation("terms can be issued again", ("lead",), "math.max(term + 1, micros)", "1"),
    Mutation("leadership can be taken", ("lead",), "if live and l[1] ~= ARGV[2] then", "if false then"),
    Mutation("no grace after an outage", ("claim", "overdue"), "if now - at > GAP_MS then", "if false then"),
    Mutation(
        "writes need memory first", ("redeem", "gateway_beat", "beat"), _GO_ON, _GO_ON.partition(" redis")[0] + " end"
    ),
    Mutation("last words are not kept", ("beat",), "if before[2] and before[1] ~= ARGV[7] then", "if false then"),
    Mutation("last words are of this run", ("beat",), "before[1] ~= ARGV[7]", "true"),
    Mutation("who leaves says nothing", ("leave",), "if last then", "if false then"),
    Mutation("a heartbeat compares nothing", ("gateway_beat",), "else missing[#missing + 1] = ARGV[i] end", "end"),
)


# --- durable jobs ---

_RETURN = "redis.call('ZREM', KEYS[T_LEASE], id)\nredis.call('ZADD', KEYS[T_READY], score, id)"
_CONCLUDE = "  redis.call('ZREM', KEYS[T_LEASE], id)\n  unqueue(KEYS[T_READY], KEYS[T_VT], KEYS[T_SINCE], id)"
_ENDS = ("job_finish", "job_return", "job_cancel", "job_expire", "job_fail")
_LEASE_OVER = " and tonumber(redis.call('ZSCORE', KEYS[T_LEASE], id) or 0) <= now"
_FENCED = ("job_chunk", "job_finish", "job_return")
_OWN = "redis.call('HDEL', KEYS[T_HASH], 'grant', 'owner', 'worker', 'replica')"

MUTATIONS += (
    Mutation("chunks are not fenced", ("job_chunk",), "if not holds({", "if false and not holds({"),
    Mutation("ends are not fenced", ("job_finish",), "if not holds(j, ARGV[3], ARGV[4]) then", "if not j then"),
    Mutation(
        "returns are not fenced", ("job_return",), "elseif not holds(j, ARGV[3], ARGV[4]) then", "elseif false then"
    ),
    Mutation("writes ignore the attempt", _FENCED, " and j.attempt == attempt", ""),
    Mutation("writes ignore the owner", _FENCED, " and j.owner == owner", ""),
    Mutation("renewal ignores the attempt", ("job_renew",), " and t[3] == attempt", ""),
    Mutation("renewal ignores the owner", ("job_renew",), " and t[2] == ARGV[2]", ""),
    Mutation("renewal moves no deadline", ("job_renew",), "num(now + tonumber(ARGV[3]))", "num(now)"),
    Mutation("nobody learns of a cancelling", ("job_renew",), "t[4] and 'cancel' or 'ok'", "'ok'"),
    Mutation("an ended job keeps its lease", _ENDS, _CONCLUDE, _CONCLUDE.partition("\n")[2]),
    Mutation("an ended job stays ready", _ENDS, _CONCLUDE, _CONCLUDE.partition("\n")[0]),
    Mutation("an ended job stays owned", _ENDS, "'owner', 'grant', 'body')", "'grant', 'body')"),
    Mutation("an ended job keeps its deadline", _ENDS, "  redis.call('ZREM', KEYS[J_DUE], id)\n", ""),
    Mutation("the body stays", _ENDS, "  redis.call('DEL', KEYS[J_BODY])\n", ""),
    Mutation("what is left has no TTL", _ENDS, "'PEXPIRE', key, num(kept + SPARE_MS)", "'EXISTS', key"),
    Mutation("output has no TTL", _ENDS, "redis.call('PEXPIRE', KEYS[J_OUT], num(out_kept))", ""),
    Mutation("a result has no TTL", _ENDS, "result, 'PX', num(kept + SPARE_MS))", "result)"),
    Mutation(
        "ended jobs are not swept", _ENDS, "redis.call('ZADD', KEYS[J_ENDED], num(expires)", "local _ = (num(expires)"
    ),
    Mutation("output is not swept", _ENDS, "if out > 0 then", "if false then"),
    Mutation("a body is not given back", _ENDS, "charge(KEYS[J_STORE], j.tenant, change, -1)", ""),
    Mutation("readers do not learn of the end", _ENDS, "redis.call('XADD', KEYS[J_OUT]", "local _ = (KEYS[J_OUT]"),
    Mutation("ends are not announced", _ENDS, "  announce(KEYS[J_HOOKS]", "  local _ = (KEYS[J_HOOKS]"),
    Mutation("a returned job keeps its lease", ("job_return",), _RETURN, _RETURN.partition("\n")[2]),
    Mutation("a returned job is not ready", ("job_return",), _RETURN, _RETURN.partition("\n")[0]),
    Mutation("a returned job is not counted", ("job_return",), "redis.call('ZADD', KEYS[T_SINCE], j.created, id)", ""),
    Mutation("a returned job stays owned", ("job_return",), _OWN, ""),
    Mutation("a job's old place across epochs", ("job_return",), "if v[2] and v[2] == epoch then", "if true then"),
    Mutation("leases of jobs end at once", ("job_return", "job_move"), _LEASE_OVER, ""),
    Mutation("a job is lost while nobody could renew it", ("job_return", "job_move"), " and not grace", ""),
    Mutation(
        "a lost attempt counts for all", ("job_move",), "if tonumber(j.spent) < tonumber(j.max_attempts)", "if false"
    ),
    Mutation("attempts are never used up", ("job_return",), "if ARGV[5] == '1' and spent", "if false and spent"),
    Mutation("a drained attempt counts", ("job_return",), "(ARGV[5] == '1' and 0 or 1)", "0"),
    Mutation("a cancelled job goes back", ("job_return",), "if j.cancel then", "if false then"),
    Mutation("a repeated return is refused", ("job_return",), "j.last == mark and 'returned' or 'no'", "'no'"),
    Mutation("a repeated end is refused", ("job_finish",), "if j and j.last == mark then return 1 end", ""),
    Mutation("a start deadline ends with a lease", ("job_return",), "if j.due and spent == 0 then", "if false then"),
    Mutation("a start deadline outlives the start", ("job_return",), "if j.due and spent == 0 then", "if j.due then"),
    Mutation("claim takes no lease of a job", ("claim",), "  redis.call('ZADD', KEYS[1], num(deadline), id)\n", ""),
    Mutation("claim leaves the job ready", ("claim",), "  unqueue(ready, vt, jobs_since, id)\n", ""),
    Mutation("claim leaves the start deadline", ("claim",), "  redis.call('ZREM', KEYS[7], id)\n", ""),
    Mutation("attempts have no number", ("claim",), "c.hash, 'attempt', 1)", "c.hash, 'attempt', 0)"),
    Mutation("attempts do not count", ("claim",), "c.hash, 'spent', 1)", "c.hash, 'spent', 0)"),
    Mutation("chunks of two attempts share numbers", ("claim",), "'seq', 0, 'run', 0, ", ""),
    Mutation("jobs take every slot", ("claim",), "from_job_bands >= most then", "false then"),
    Mutation(
        "handed-off jobs wait for room", ("claim",), "if band > interactive then from_job", "if true then from_job"
    ),
    Mutation("a start is announced each time", ("claim",), "if attempt == 1 then announce", "if true then announce"),
    Mutation(
        "a chunk is written twice", ("job_chunk",), "if tonumber(ARGV[4]) <= tonumber(t[4]) then", "if false then"
    ),
    Mutation("output is not bounded", ("job_chunk",), "if t[6] + size > tonumber(ARGV[7]) then", "if false then"),
    Mutation("output is not counted", ("job_chunk",), "charge(KEYS[4], t[5], size, 0)", ""),
    Mutation("the same id twice", ("job_submit",), "if known then return", "if false then return"),
    Mutation("another tenant's id", ("job_submit",), "known == ARGV[4] and 'SAME' or 'CONFLICT'", "'SAME'"),
    Mutation("keys are not looked up", ("job_submit",), "    if before then", "    if false then"),
    Mutation("any body for a key", ("job_submit",), "digest == ARGV[8] and 'SAME' or 'CONFLICT'", "'SAME'"),
    Mutation("no bound of a tenant's bytes", ("job_submit",), "+ bytes > tonumber(ARGV[15])", "+ bytes < 0"),
    Mutation("no bound of all bytes", ("job_submit",), "+ bytes > tonumber(ARGV[16])", "+ bytes < 0"),
    Mutation("no bound of a tenant's jobs", ("job_submit",), ">= tonumber(ARGV[17])", "< 0"),
    Mutation("jobs are not charged", ("job_submit",), "finish = start + price", "finish = start"),
    Mutation("a granted ticket is handed off", ("job_adopt",), "if t[1] ~= 'ready' or ", "if not t[1] or "),
    Mutation("any gateway hands off", ("job_adopt",), " or t[4] ~= ARGV[19] then", " then"),
    Mutation("a ticket stays beside its job", ("job_adopt",), "redis.call('ZREM', KEYS[T_READY], ticket)\n", ""),
    Mutation("a handed-off ticket is still counted", ("job_adopt",), "redis.call('ZREM', KEYS[21], ticket)\n", ""),
    Mutation("a handed-off ticket is still held", ("job_adopt",), "redis.call('SREM', KEYS[22], ticket)\n", ""),
    Mutation("anybody cancels", ("job_cancel",), " or j.tenant ~= ARGV[3] then", " then"),
    Mutation("anybody deletes", ("job_delete",), "if t[1] ~= ARGV[3] or ", "if "),
    Mutation("what runs can be deleted", ("job_delete",), "if not t[2] then return 'active' end", ""),
    Mutation("a deleted job is not given back", ("job_delete",), "charge(KEYS[2], ARGV[3], t[4] - t[3], 0)", ""),
    Mutation("a swept job is not given back", ("job_forget",), "charge(KEYS[2], ARGV[6], -tonumber(ARGV[5]), 0)", ""),
    Mutation("results go before their time", ("job_forget",), "if not at or at > now then", "if not at then"),
    Mutation("jobs expire before their time", ("job_expire",), " or tonumber(j.due) > now then", " then"),
    Mutation("started jobs expire", ("job_expire",), " or tonumber(j.spent) > 0", ""),
    Mutation("a failed load counts twice", ("job_loads",), "if t[4] ~= ARGV[4] then", "if true then"),
    Mutation(
        "running jobs fail with their model", ("job_fail",), "if not waits_here(j, ARGV[2]) then", "if not j then"
    ),
    Mutation("a moved job ends in two places", ("job_cancel", "job_expire", "job_fail"), _WAITS_HERE, "true end"),
    Mutation("a job is moved twice", ("job_move",), " or (j.chain or '') ~= ARGV[7]", ""),
    Mutation(
        "anybody moves a job that runs", ("job_move",), "elseif not waits and not holds(", "elseif false and not holds("
    ),
    Mutation(
        "a job that runs is moved away", ("job_move",), "if waits and not waits_here(j, id) then return 0 end", ""
    ),
    Mutation(
        "a moved job waits in two queues", ("job_move",), "unqueue(KEYS[T_READY], KEYS[T_VT], KEYS[T_SINCE], id)", ""
    ),
    Mutation("a moved job keeps its lease", ("job_move",), "redis.call('ZREM', KEYS[T_LEASE], id)\n", ""),
    Mutation("a moved job has no attempts left", ("job_move",), ", 'loads', 0, 'spent', 0)", ")"),
    Mutation("nobody hears of a moved job", ("job_move",), "redis.call('HSET', KEYS[J_DEMAND], ARGV[8], num(now))", ""),
    Mutation("any gateway steps", ("batch_step",), "if b[1] ~= ARGV[3] then return 'LOST' end", ""),
    Mutation("a step is made twice", ("batch_step",), "if b[2] == ARGV[4] then return 'OK' end", ""),
    Mutation("steps in any order", ("batch_step",), "tonumber(b[2]) ~= tonumber(ARGV[4]) - 1 or ", ""),
    Mutation(
        "a step over a cancel", ("batch_step",), " or b[3] ~= ARGV[5] then return 'LOST' end", " then return 1 end"
    ),
    Mutation("output of batches is not bounded", ("batch_step",), "if bound > 0 and ", "if false and "),
    Mutation("output of batches is not counted", ("batch_step",), "account(KEYS[7], file_id, ARGV[8], #piece)", ""),
    Mutation("an ended batch stays at work", ("batch_step",), "redis.call('ZREM', KEYS[2], id)\n", ""),
    Mutation("an ended batch holds its input", ("batch_step",), "redis.call('HINCRBY', KEYS[10], 'refs', -1)", ""),
    Mutation("a batch is anybody's", ("batch_claim",), "if owner ~= ARGV[3] and due > now then return 0 end", ""),
    Mutation("a batch of another's file", ("batch_create",), "if f[1] ~= ARGV[3] or ", "if "),
    Mutation("batches without bound", ("batch_create",), "redis.call('ZCARD', KEYS[2]) >=", "-1 >="),
    Mutation(
        "the same batch twice", ("batch_create",), "if redis.call('EXISTS', KEYS[1]) == 1 then return 'DUP' end", ""
    ),
    Mutation(
        "an ended batch is cancelled", ("batch_cancel",), "state ~= 'finalizing' then return 0 end", "false then end"
    ),
    Mutation("no bound of a tenant's files", ("file_begin",), "mine + bytes > tonumber(ARGV[7])", "false"),
    Mutation("no bound of all files", ("file_begin",), "all + bytes > tonumber(ARGV[8])", "false"),
    Mutation("half a file is shown", ("file_commit",), "redis.call('STRLEN', KEYS[2]) ~= tonumber(f[1])", "false"),
    Mutation("an input in use is deleted", ("file_delete",), "if tonumber(f[2] or 0) > 0 then", "if false then"),
    Mutation("files go before their time", ("file_delete",), "tonumber(ends or 0) > now", "false"),
    Mutation("a deleted file is not given back", ("file_delete",), "\nrelease(KEYS[4], id)", "\n"),
    Mutation(
        "a delivery is anybody's", ("hook_claim",), "if not due or (due > now and state[1] ~= ARGV[3]) then", _UNDUE
    ),
    Mutation("a claimed delivery stays due", ("hook_claim",), _HELD, ""),
    Mutation("what was told stays for ever", ("hook_claim",), "redis.call('PEXPIRE', KEYS[3],", "math.max("),
    Mutation("whoever lost a delivery ends it", ("hook_done",), _CLAIMED.format(3), ""),
    Mutation("whoever lost a delivery puts it off", ("hook_later",), _CLAIMED.format(2), ""),
    Mutation("an event is told again", ("hook_done",), "redis.call('LPOP', KEYS[2])\n", ""),
    Mutation("events have one number", ("hook_done",), "redis.call('HINCRBY', KEYS[3], 'seq', 1)\n", ""),
    Mutation("the second event is never told", ("hook_done",), "redis.call('EXISTS', KEYS[2]) == 1", "false"),
    Mutation("a told job stays due", ("hook_done",), "else\n  redis.call('ZREM', KEYS[1], ARGV[2])", "else"),
    Mutation("tries are not counted", ("hook_later",), "redis.call('HINCRBY', KEYS[2], 'tries', 1)", ""),
    Mutation("what is put off is due at once", ("hook_later",), "now + tonumber(ARGV[4])", "now"),
    Mutation("events outlive their job", ("hook_drop",), "redis.call('DEL', KEYS[2], KEYS[3])", ""),
    Mutation("a dropped job stays due", ("hook_drop",), "redis.call('ZREM', KEYS[1], ARGV[2])", ""),
    Mutation("jobs need memory to end", _ENDS[:3], _GO_ON, _GO_ON.partition(" redis")[0] + " end"),
    Mutation("jobs need memory to go on", ("job_renew", "job_chunk"), _GO_ON, _GO_ON.partition(" redis")[0] + " end"),
)


@cache
def checked_sources(mutation: str | None = None) -> Mapping[str, str]:
    """All scripts; broken by ``mutation``, or by the one that ``REWARM_TEST_MUTATION`` names."""
    name = mutation or os.environ.get("REWARM_TEST_MUTATION")
    out = dict(sources())
    if name:
        broken = next(m for m in MUTATIONS if m.name == name)
        for script in broken.scripts:
            if broken.old in out[script]:
                out[script] = out[script].replace(broken.old, broken.new)
        assert out != sources(), f"{name}: the scripts no longer contain {broken.old!r}"
    return {script: _DECLARED_ONLY + text for script, text in out.items()}
