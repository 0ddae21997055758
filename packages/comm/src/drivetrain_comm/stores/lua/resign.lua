-- ARGV: time to live, rank, who. Gives up a place that was taken in vain.
local now = redis.call('HGET', data, 'generation') or '0'
local place = now .. '/place/' .. ARGV[2]
if redis.call('HEXISTS', data, now .. '/complete') == 0
    and redis.call('HGET', data, place) == ARGV[3] then
  redis.call('HDEL', data, place)
  redis.call('HINCRBY', data, now .. '/present', -1)
  redis.call('DEL', data .. ':lease:' .. place)
end
