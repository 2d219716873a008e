-- A job joins the waiting of its model, behind the requests whose clients wait. A repeat finds it there and changes nothing.
-- KEYS 1..19 places, 20.. ready of all bands; ARGV 2..17 see create(), 18 weight, 19 cost
-- -> {'OK', position} | {'SAME' | 'CONFLICT', the job that was there} | {'TENANT_BYTES' | 'BYTES' | 'TENANT_JOBS', kept}
local now, _, micros = clock()
local id, model = ARGV[2], ARGV[3]
local refused = refusal(id)
if refused then return refused end
local place = next_place(KEYS[T_VT], ARGV[4], tonumber(ARGV[19]) / tonumber(ARGV[18]), micros)
create(id, now, place.score, num(place.start), place.epoch)
take_place(KEYS[T_VT], ARGV[4], place)
redis.call('HSET', KEYS[J_DEMAND], model, num(now))
ring(KEYS[J_BELL], 'enqueue', model)
return {'OK', position(id, KEYS[T_READY], 20)}
