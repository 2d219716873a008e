-- A ticket joins the waiting of its model. A repeat finds it there already and changes nothing.
--
-- Start-time fair queueing: score = max(V, the tenant's finish), finish = score + cost / weight, V = the start of the last
-- claimed. Tenants without a backlog all start at V; among them the earlier arrival goes first, by a term too small to
-- matter otherwise. Without it the order of equal scores is that of the ids, and an unlucky id could starve.
--
-- KEYS 1..8 places, 9 demand, 10 bell, 11 again (or the ticket's hash), 12.. ready of all bands, highest first
-- ARGV 2 id, 3 model, 4 tenant, 5 gateway, 6 band, 7 weight, 8 cost, 9 bytes, 10 max waiting, 11 has a kept place, 12 gateway ttl
-- -> {'OK' | 'AGAIN' | 'DUP' | 'FULL', position}
local now, _, micros = clock()
local id, model, band = ARGV[2], ARGV[3], ARGV[6]

local state = redis.call('HGET', KEYS[T_HASH], 'state')
if state == 'ready' then return {'DUP', position(id, KEYS[T_READY], 12)} end
if state then return {'DUP', 0} end -- its grant is on the way

local waiting = redis.call('ZCARD', KEYS[T_SINCE])
if waiting >= tonumber(ARGV[10]) then return {'FULL', waiting} end

local place, again = next_place(KEYS[T_VT], ARGV[4], tonumber(ARGV[8]) / tonumber(ARGV[7]), micros), false
if ARGV[11] == '1' then
  local kept = redis.call('GET', KEYS[11])
  if kept then
    local left = cmsgpack.unpack(kept)
    if left.model == model and left.band == band then
      local old, old_start = old_place(KEYS[T_VT], left.score, left.start, left.epoch)
      if tonumber(old) <= tonumber(place.score) then
        place.score, place.start, again = old, tonumber(old_start), true
        place.finish = place.paid -- it was paid for when it was first taken
      end
    end
  end
end

-- Full of memory, Redis refuses this first write, and nothing has changed.
redis.call('HSET', KEYS[T_HASH], 'state', 'ready', 'model', model, 'tenant', ARGV[4], 'gateway', ARGV[5], 'band', band,
  'weight', ARGV[7], 'cost', ARGV[8], 'bytes', ARGV[9], 'score', place.score, 'start', num(place.start), 'epoch', place.epoch,
  'created', num(now))
take_place(KEYS[T_VT], ARGV[4], place)
redis.call('ZADD', KEYS[T_READY], place.score, id)
redis.call('ZADD', KEYS[T_SINCE], num(now), id)
redis.call('SADD', KEYS[T_HELD], id)
redis.call('ZADD', KEYS[T_GW], 'GT', num(now + tonumber(ARGV[12])), ARGV[5]) -- it enqueues, so it lives
if again then redis.call('DEL', KEYS[11]) end
redis.call('HSET', KEYS[9], model, num(now))
ring(KEYS[10], 'enqueue', model)
return {again and 'AGAIN' or 'OK', position(id, KEYS[T_READY], 12)}
